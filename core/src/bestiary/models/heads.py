"""Heads that transformers does not bring."""

import torch
from torch import Tensor, nn

VALUE_HEAD_PREFIX = "value_head."
"""Begins the checkpoint names of its parameters."""


class ValueHead(nn.Module):
    """A number for each token: V = w·h + b, in float32 whatever the model computes in.

    Starts at 0, so that the first advantages are those of the returns alone.

    Args:
        hidden: width of the hidden states.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] → [...], at least float32."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        weight, bias = self.linear.weight[0].to(dtype), self.linear.bias.to(dtype)
        return hidden.to(dtype) @ weight + bias
