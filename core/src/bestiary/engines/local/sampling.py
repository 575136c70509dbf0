"""Draw tokens from logits: filters, inverse CDF, log-probabilities, all rows at once.

Shape suffixes: n = rows, V = vocabulary, K = candidates in descending order.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from bestiary.protocols import Sampling

_CANDIDATES = 1024
"""Tokens that are sorted first in a large vocabulary; rows that need more are sorted whole."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token for each row.

    Args:
        tokens: [n] int64.
        logprobs: [n] float32 of the distribution that was drawn from.
        logprobs_full: [n] float32 without truncation; the same object where nothing truncates.
    """

    tokens: "Tensor"
    logprobs: "Tensor"
    logprobs_full: "Tensor"


class Rules:
    """The samplings of one call, as tables that rows index by number.

    Args:
        samplings: the distinct kinds of response.
        device: where logits are.
    """

    def __init__(self, samplings: "Sequence[Sampling]", device: torch.device) -> None:
        def table(values: list[float], dtype: torch.dtype) -> "Tensor":
            return torch.tensor(values, dtype=dtype, device=device)

        self.device = device
        temperatures = [s.temperature for s in samplings]
        self.temperature = None if set(temperatures) == {1.0} else temperatures[0]
        self.temperatures = None
        if len(set(temperatures)) > 1:
            self.temperatures = table(temperatures, torch.float32)
        self.greedy = np.array([s.greedy for s in samplings])
        # Truncation never removes the most probable token, so greedy rows do without.
        self.filters = np.array(
            [(s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0) and not s.greedy for s in samplings]
        )
        self.top_k = table([s.top_k for s in samplings], torch.int64)
        self.top_p = table([s.top_p for s in samplings], torch.float32)
        self.min_p = table([s.min_p for s in samplings], torch.float32)

    def draw(
        self, logits: "Tensor", which: "NDArray[np.int64]", uniforms: "NDArray[np.float64]"
    ) -> Draw:
        """A token for each row.

        Args:
            logits: [n, V] float32; may be overwritten.
            which: [n] number of each row's sampling.
            uniforms: [n] in [0, 1).
        """
        if self.temperatures is not None:
            rows = torch.from_numpy(which).to(self.device)
            logits = logits / self.temperatures[rows].unsqueeze(1)
        elif self.temperature is not None:
            logits = logits / self.temperature
        full = torch.log_softmax(logits, dim=-1)
        behaviour = self._truncate(logits, full, which)
        greedy = self.greedy[which]
        if greedy.all():
            tokens = logits.argmax(-1)
        else:
            tokens = inverse_cdf(behaviour, torch.from_numpy(uniforms).to(self.device))
            if greedy.any():
                best = torch.from_numpy(np.flatnonzero(greedy)).to(self.device)
                tokens[best] = logits[best].argmax(-1)
        at = tokens.unsqueeze(1)
        logprobs_full = full.gather(1, at).squeeze(1)
        if behaviour is full:
            return Draw(tokens, logprobs_full, logprobs_full)
        return Draw(tokens, behaviour.gather(1, at).squeeze(1), logprobs_full)

    def _truncate(self, logits: "Tensor", full: "Tensor", which: "NDArray[np.int64]") -> "Tensor":
        """[n, V] log-probabilities of the distribution that is drawn from."""
        needs = self.filters[which]
        if not needs.any():
            return full
        rows = torch.from_numpy(np.flatnonzero(needs)).to(self.device)
        kinds = torch.from_numpy(which[needs]).to(self.device)
        kept = truncated(logits[rows], self.top_k[kinds], self.top_p[kinds], self.min_p[kinds])
        behaviour = torch.log_softmax(kept, dim=-1)
        return behaviour if needs.all() else full.index_copy(0, rows, behaviour)


def inverse_cdf(logprobs: "Tensor", uniforms: "Tensor") -> "Tensor":
    """[n] the first token, in order of ids, at which the summed probability exceeds ``u·total``.

    Args:
        logprobs: [n, V] float32; -inf is never drawn.
        uniforms: [n] float64 in [0, 1).
    """
    cdf = torch.exp(logprobs).cumsum_(-1)
    total = cdf[:, -1:]
    # Rounding may lift u·total to total itself, beyond which no token lies.
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms.to(cdf.dtype).unsqueeze(1) * total, below)
    return torch.searchsorted(cdf, target, right=True).squeeze(1).clamp_(max=cdf.shape[1] - 1)


def truncated(logits: "Tensor", top_k: "Tensor", top_p: "Tensor", min_p: "Tensor") -> "Tensor":
    """Set to -inf what top-k, then top-p, then min-p remove, as transformers orders them.

    Args:
        logits: [n, V] float32 at the sampling temperature.
        top_k: [n] int64, 0 for off; equals of the k-th stay.
        top_p: [n] in (0, 1]: a token stays while the mass before it is below top_p.
        min_p: [n] in [0, 1): smallest probability as a share of the largest.
    """
    vocab = logits.shape[1]
    if vocab <= _CANDIDATES:
        return _truncate_sorted(logits, vocab, top_k, top_p, min_p)[0]
    out, complete = _truncate_sorted(logits, _CANDIDATES, top_k, top_p, min_p)
    if not bool(complete.all()):
        rest = torch.nonzero(~complete).squeeze(1)
        out[rest] = _truncate_sorted(logits[rest], vocab, top_k[rest], top_p[rest], min_p[rest])[0]
    return out


def _truncate_sorted(
    logits: "Tensor", count: int, top_k: "Tensor", top_p: "Tensor", min_p: "Tensor"
) -> tuple["Tensor", "Tensor"]:
    """(filtered logits, [n] whether the ``count`` best tokens held everything that stays)."""
    if count == logits.shape[1]:
        best_nK, ids_nK = torch.sort(logits, dim=-1, descending=True)
    else:
        best_nK, ids_nK = torch.topk(logits, count, dim=-1)
    limited = (top_k > 0) & (top_k < logits.shape[1])
    place = (top_k.clamp(1, count) - 1).unsqueeze(1)
    kth = torch.where(limited.unsqueeze(1), best_nK.gather(1, place), float("-inf"))
    keep = best_nK >= kth
    masked = best_nK.masked_fill(~keep, float("-inf"))
    # Without top-k the mass of the tokens that are not among the candidates counts too.
    mass = torch.where(limited, masked.logsumexp(-1), logits.logsumexp(-1)).unsqueeze(1)
    probs = torch.exp(masked - mass)
    before = probs.cumsum(-1, dtype=torch.float64) - probs
    limit = torch.where(top_p < 1.0, top_p, float("inf")).unsqueeze(1)
    keep &= before < limit
    keep &= best_nK - best_nK[:, :1] >= torch.log(min_p).unsqueeze(1)
    keep[:, 0] = True
    out = torch.full_like(logits, float("-inf"))
    out.scatter_(1, ids_nK, best_nK.masked_fill(~keep, float("-inf")))
    return out, ~keep[:, -1] & (top_k <= count)
