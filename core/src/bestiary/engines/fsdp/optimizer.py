"""AdamW on a few large tensors, with clipping and the skip of steps that are not finite."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bestiary.engines.fsdp.options import FSDPOptions


class AdamW:
    """Decoupled weight decay (Loshchilov & Hutter 2019), float32 moments.

    Args:
        weights: tensors that are updated in place.
        options: learning rate and decays.
    """

    def __init__(self, weights: Sequence[Tensor], options: FSDPOptions) -> None:
        self.options = options
        self.weights = list(weights)
        self.first = [torch.zeros_like(w) for w in weights]
        self.second = [torch.zeros_like(w) for w in weights]
        self.steps = [torch.zeros((), dtype=torch.float32, device=w.device) for w in weights]

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], lr: float) -> None:
        """Update the weights."""
        beta1, beta2 = self.options.betas
        adamw(
            self.weights,
            list(grads),
            self.first,
            self.second,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=self.options.weight_decay,
            eps=self.options.eps,
            maximize=False,
        )

    def to(self, device: torch.device) -> int:
        """Move the moments; returns the bytes that moved."""
        moved = 0
        for held in (self.first, self.second, self.steps):
            for i, tensor in enumerate(held):
                if tensor.device != device:
                    held[i] = tensor.to(device)
                    moved += tensor.numel() * tensor.element_size()
        return moved

    def set_step(self, step: int) -> None:
        """Set the number of steps done, for the bias correction."""
        for count in self.steps:
            count.fill_(step)


def clip(grads: Sequence[Tensor], norm: float, limit: float) -> None:
    """Scale gradients down to a norm of ``limit``; 0 does not clip."""
    if 0 < limit < norm:
        for grad in grads:
            grad.mul_(limit / (norm + 1e-6))
