"""Terms of an update on one micro-batch: losses are evaluated on leaves, apart from the model.

The gradient with respect to log-probabilities, entropies and values is made first, cut to the
tokens that count, and only then sent through the model. So whatever a loss makes of a row without
weight (NaN, infinity) stays there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestiary.batch import RowBlock, Rows
from bestiary.engines.engine_api import TermJob
from bestiary.engines.fsdp.forward import Plan
from bestiary.errors import AlgorithmError, boundary
from bestiary.protocols import ComponentRef, ModelOutput, Stat

Resolve = Callable[[ComponentRef], Any]
"""Makes the loss that a reference names."""


def plugin_resolver() -> Resolve:
    """Resolve losses through the plugins of this process, loaded once, each loss built once."""
    made: dict[tuple[str, str], Any] = {}
    registries: list[Any] = []

    def resolve(ref: ComponentRef) -> Any:  # noqa: ANN401 - a loss
        from bestiary.plugins.manager import load_plugins

        key = (ref.name, repr(sorted(ref.options.items())))
        if key not in made:
            if not registries:
                registries.append(load_plugins().registry)
            component = registries[0].get("loss", ref.name)
            made[key] = component.build(component.options_class()(**ref.options))
        return made[key]

    return resolve


@dataclass(slots=True)
class TermTotals:
    """Sums over the micro-batches of an update."""

    values: dict[str, float]
    stats: dict[str, Stat]

    def add_stats(self, stats: Mapping[str, Stat]) -> None:
        """Add statistics that a loss reports."""
        for name, stat in stats.items():
            self.stats[name] = self.stats[name] + stat if name in self.stats else stat


def outputs_of(losses: Sequence[Any]) -> frozenset[str]:
    """The fields of ``ModelOutput`` that these losses need."""
    needed: frozenset[str] = frozenset()
    for loss in losses:
        needed |= loss.options.outputs
    return needed


def rows_on(block: RowBlock, device: torch.device | str) -> Rows:
    """Padded rows on a device."""
    rows = Rows.from_block(block)
    if torch.device(device).type == "cpu":
        return rows
    columns = {name: column.to(device) for name, column in rows.items()}
    return Rows(columns, rows.mask.to(device), rows.text)


def spread(flat: Tensor, plan: Plan) -> Tensor:
    """[M] → [b, T] without gradient, 0 right of each row."""
    b, t = plan.shape
    padded = torch.zeros(b * t, dtype=flat.dtype, device=flat.device)
    padded[plan.place] = flat.detach()
    return padded.view(b, t)


def term_gradients(
    flat: Mapping[str, Tensor],
    plan: Plan,
    rows: Rows,
    micro: np.ndarray,
    terms: Sequence[TermJob],
    losses: Sequence[Any],
    totals: TermTotals,
) -> dict[str, Tensor]:
    """Evaluate the terms; the gradient of their weighted sum for each model output, [M] each.

    Σ_terms Σ_rows w[row] · Σ_t ℓ[row, t] · mask[row, t], with w[row] · token_weight[row, t] in
    place of w[row] for losses that a correction applies to. A token of weight 0 adds nothing
    itself, whatever the loss is there, but others may depend on it (a ratio of whole sequences,
    the other row of a pair), so it keeps the gradient that they send.

    Args:
        flat: what the model said, [M] each.
        plan: the micro-batch's layout.
        rows: its padded rows.
        micro: indices of its rows among those of ``terms``.
        terms: the summands.
        losses: the loss of each.
        totals: receives values and statistics.
    """
    leaves = {name: spread(x, plan).requires_grad_() for name, x in flat.items()}
    now = ModelOutput(**leaves)
    if "old_logprobs" not in rows and "logprobs" in leaves:
        rows = rows.with_columns(old_logprobs=leaves["logprobs"].detach())
    grads = {name: torch.zeros_like(x) for name, x in leaves.items()}
    mask = rows.mask
    for term, loss in zip(terms, losses, strict=True):
        weights = torch.from_numpy(np.asarray(term.row_weights, dtype=np.float64)[micro])
        weights = weights.to(mask.device)
        weights = weights[:, None].expand(mask.shape)
        if getattr(loss.options, "corrected", False) and "token_weight" in rows:
            weights = weights * rows["token_weight"].double().masked_fill(~mask, 0)
        live = mask & (weights != 0)
        with boundary(getattr(loss, "owner", None), f"calling {term.loss}", AlgorithmError):
            per_token, stats = loss(now, rows)
        if per_token.shape != mask.shape:
            raise AlgorithmError(
                f"{term.loss} returned a loss of shape {tuple(per_token.shape)}; "
                f"{tuple(mask.shape)} (rows, response tokens) is wanted",
                hint="a loss returns one value a token, without reducing",
            )
        totals.add_stats(stats)
        counted = torch.where(live, per_token.detach().double(), 0.0) * weights
        name = f"loss/{term.loss.name}"
        totals.values[name] = totals.values.get(name, 0.0) + float(counted.sum())
        if not per_token.requires_grad or not bool(live.any()):
            continue
        factor = torch.where(live, weights, 0.0).to(per_token.dtype)
        found = torch.autograd.grad(per_token, list(leaves.values()), factor, allow_unused=True)
        for name, grad in zip(leaves, found, strict=True):
            if grad is not None:
                # 0 times what is not finite arrives as NaN at tokens without weight.
                grads[name] += torch.where(live | (mask & grad.isfinite()), grad, 0.0)
    return {name: grad.flatten()[plan.place] for name, grad in grads.items()}
