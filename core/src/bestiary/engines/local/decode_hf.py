"""Any other causal language model: transformers' own forward with its cache.

Rows are aligned on the right: each row's tokens are adjacent and all rows end in the same
column, as in ``transformers.generate``. So distances between columns are distances between
tokens, and learned, rotary, relative and windowed positions all hold.
"""

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from bestiary.engines.local.decoder import Prefilled
from bestiary.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from bestiary.engines.local.network import Weights

_TRIM = 16
"""Columns that no row uses any more are cut off once there are so many."""


@dataclass(slots=True)
class _Rows:
    """Cache of some rows: keys and values of each layer [n, H, C, D], live columns [n, C]."""

    layers: list[tuple[Any, Any]]
    live: "Tensor"

    def take(self, index: "Tensor") -> "_Rows":
        layers = [(k.index_select(0, index), v.index_select(0, index)) for k, v in self.layers]
        return _Rows(layers, self.live.index_select(0, index))

    def widened(self, width: int) -> "_Rows":
        """The same rows with dead columns on the left."""
        more = width - self.live.shape[1]
        if more <= 0:
            return self
        layers = [(F.pad(k, (0, 0, more, 0)), F.pad(v, (0, 0, more, 0))) for k, v in self.layers]
        return _Rows(layers, F.pad(self.live, (more, 0)))

    def then(self, other: "_Rows") -> "_Rows":
        """These rows and the other's."""
        width = max(self.live.shape[1], other.live.shape[1])
        a, b = self.widened(width), other.widened(width)
        layers = [
            (torch.cat([ka, kb]), torch.cat([va, vb]))
            for (ka, va), (kb, vb) in zip(a.layers, b.layers, strict=True)
        ]
        return _Rows(layers, torch.cat([a.live, b.live]))

    def trimmed(self, width: int) -> "_Rows":
        """Without the columns to the left of the last ``width``."""
        if self.live.shape[1] - width < _TRIM:
            return self
        layers = [(k[:, :, -width:], v[:, :, -width:]) for k, v in self.layers]
        return _Rows(layers, self.live[:, -width:])


class HFDecoder:
    """Decodes with a transformers model.

    Args:
        config: of the model.
        dtype: of computation.
        device: where it runs.
    """

    fixed_rows = 1
    """Its columns depend on all running rows, so determinism means one row at a time."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:  # noqa: ANN401 - transformers
        self.device, self.config, self.dtype = device, config, dtype
        self.model: Any = None
        self._positions = False
        self._last_only: dict[str, int] = {}
        self._rows: _Rows | None = None
        self._lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def load(self, weights: "Weights") -> None:
        """Copy the weights into the model; tied ones share memory."""
        if self.model is None:
            self._build()
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.items():
                parameters[name].copy_(tensor)

    def _build(self) -> None:
        from transformers import AutoModelForCausalLM

        with torch.random.fork_rng(devices=[]):  # throw-away values must not move the run's seeds
            build: Any = AutoModelForCausalLM.from_config
            self.model = build(self.config, dtype=self.dtype).to(self.device).eval()
        known = inspect.signature(self.model.forward).parameters
        self._positions = "position_ids" in known
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    def reserve(self, rows: int, length: int, *, fixed: bool) -> None:
        """Start anew: memory grows with the rows."""
        self._rows = None
        self._lengths = np.zeros(rows, dtype=np.int64)

    def prefill(self, prompts: "Sequence[NDArray[np.int64]]") -> Prefilled:
        """Read prompts padded on the left."""
        lengths = np.array([len(p) for p in prompts], dtype=np.int64)
        width = int(lengths.max())
        padded = np.zeros((len(prompts), width), dtype=np.int64)
        live = np.zeros((len(prompts), width), dtype=np.int64)
        for i, prompt in enumerate(prompts):
            padded[i, width - len(prompt) :] = prompt
            live[i, width - len(prompt) :] = 1
        mask = torch.from_numpy(live).to(self.device)
        rows = _Rows([], mask)
        logits = self._forward(torch.from_numpy(padded).to(self.device), rows)
        return Prefilled(logits, lengths, rows)

    def place(self, prompts: Prefilled, index: "NDArray[np.int64]", row: int) -> None:
        """Append rows."""
        rows: _Rows = prompts.state
        new = rows.take(torch.from_numpy(index).to(self.device))
        self._rows = new if self._rows is None or row == 0 else self._rows.then(new)
        self._lengths[row : row + len(index)] = prompts.lengths[index]

    def step(self, tokens: "Tensor") -> "Tensor":
        """One token for each running row."""
        assert self._rows is not None  # noqa: S101 - own invariant
        self._rows.live = F.pad(self._rows.live, (0, 1), value=1)
        logits = self._forward(tokens.unsqueeze(1), self._rows)
        self._lengths[: len(tokens)] += 1
        return logits

    def move(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]", n: int) -> None:
        """Keep n rows, those at ``source`` in the place of ``target``."""
        assert self._rows is not None  # noqa: S101 - own invariant
        keep = np.arange(n)
        keep[target] = source
        self._lengths[:n] = self._lengths[keep]
        if n == 0:
            self._rows = None
            return
        kept = self._rows.take(torch.from_numpy(keep).to(self.device))
        self._rows = kept.trimmed(int(self._lengths[:n].max()))

    def free(self) -> int:
        """Drop KV memory."""
        freed = self.kv_bytes()
        self._rows = None
        return freed

    def kv_bytes(self) -> int:
        """Bytes of KV memory that is held."""
        layers = self._rows.layers if self._rows is not None else []
        return sum(t.numel() * t.element_size() for pair in layers for t in pair)

    def weight_bytes(self) -> int:
        """Bytes of the model's parameters."""
        parameters = self.model.parameters() if self.model is not None else ()
        return sum(p.numel() * p.element_size() for p in parameters)

    def drop(self) -> None:
        """Let go of the model."""
        self.model = None

    def to(self, device: torch.device) -> None:
        """Move the model."""
        if self.model is not None:
            self.model.to(device)

    def _forward(self, tokens: "Tensor", rows: _Rows) -> "Tensor":
        """[n, V] float32 at the last column; the cache in ``rows`` is replaced."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for i, (keys, values) in enumerate(rows.layers):
            cache.update(keys, values, i)
        more: dict[str, Any] = dict(self._last_only)
        if self._positions:
            counted = (rows.live.cumsum(1) - 1).clamp_(min=0)
            more["position_ids"] = counted[:, -tokens.shape[1] :]
        out = self.model(
            input_ids=tokens,
            attention_mask=rows.live,
            past_key_values=cache,
            use_cache=True,
            **more,
        )
        stored: list[Any] = cache.layers
        rows.layers = [(getattr(x, "keys", None), getattr(x, "values", None)) for x in stored]
        if not rows.layers or any(keys is None for keys, _ in rows.layers):
            raise EngineError(
                f"local engine: {type(self.model).__name__} does not keep its keys and values in "
                "a transformers cache, so it cannot be decoded step by step",
                hint="use a rollout engine that supports this architecture",
            )
        logits: Tensor = out.logits[:, -1].float()
        return logits
