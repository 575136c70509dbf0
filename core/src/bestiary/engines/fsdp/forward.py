"""The forward pass: a plan in, log-probabilities, entropies or values of its tokens out."""

# Legend: N packed tokens, M predicted tokens, H hidden size, V vocabulary, b rows, S padded width.

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from bestiary.batch import Ragged
from bestiary.engines.fsdp.packing import PackPlan
from bestiary.models.heads import ValueHead
from bestiary.ops.logits import full_kl, probs_squared
from bestiary.ops.policy import entropy_from_logits, token_logprobs


@dataclass(frozen=True, slots=True)
class PaddedPlan:
    """Right-padded rows.

    Args:
        input_ids: [b, S].
        attention_mask: [b, S] int64, 1 on tokens.
        source: [M] where each predicted token's predictor is in [b × S].
        targets: [M] the predicted tokens.
        place: [M] where each of them is in a [b × T] array.
        shape: (b, T).
    """

    input_ids: Tensor
    attention_mask: Tensor
    source: Tensor
    targets: Tensor
    place: Tensor
    shape: tuple[int, int]


Plan = PackPlan | PaddedPlan


@dataclass(frozen=True, slots=True)
class Against:
    """What the reference makes of a plan: the logits that a KL over the vocabulary is taken to.

    Args:
        states: [M, H] hidden states, or [M, V] logits.
        head: from states to logits.
    """

    states: Tensor
    head: Callable[[Tensor], Tensor]


def pad(prompts: Ragged, responses: Ragged, device: str | torch.device = "cpu") -> PaddedPlan:
    """Lay out rows for a plain right-padded forward pass."""
    p_lens, lens = prompts.lengths, responses.lengths
    total = p_lens + lens
    wide, width = int(total.max(initial=0)), int(lens.max(initial=0))
    ids = np.zeros((len(lens), wide), dtype=np.int64)
    column = np.arange(wide)[None, :]
    ids[column < p_lens[:, None]] = prompts.values
    ids[(column >= p_lens[:, None]) & (column < total[:, None])] = responses.values
    row = np.repeat(np.arange(len(lens)), lens)
    step = np.arange(int(lens.sum())) - np.repeat(responses.offsets[:-1], lens)

    def put(x: Any) -> Tensor:  # noqa: ANN401 - any integer array
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)).to(device)

    return PaddedPlan(
        input_ids=put(ids),
        attention_mask=put(column < total[:, None]),
        source=put(row * wide + p_lens[row] - 1 + step),
        targets=put(responses.values),
        place=put(row * width + step),
        shape=(len(lens), width),
    )


class Net(nn.Module):
    """A language model, its body with a value head, or both heads on one body, that runs plans.

    Args:
        lm: the language model; without an output layer where only values are wanted.
        value_head: makes values.
        logits_chunk: elements of logits held at once.
    """

    def __init__(
        self, lm: PreTrainedModel, value_head: ValueHead | None = None, logits_chunk: int = 1 << 24
    ) -> None:
        super().__init__()
        self.lm = lm
        self.value_head = value_head
        self.logits_chunk = logits_chunk

    @property
    def fields(self) -> frozenset[str]:
        """The fields that some head makes, without the entropy."""
        output = self.lm.get_output_embeddings()  # type: ignore[no-untyped-call] # transformers does not type it
        found = set() if isinstance(output, nn.Identity) else {"logprobs"}
        return frozenset(found | ({"values"} if self.value_head is not None else set()))

    def forward(
        self,
        plan: Plan,
        outputs: Collection[str],
        temperature: float = 1.0,
        against: Against | None = None,
    ) -> dict[str, Tensor]:
        """Fields of ``ModelOutput`` by name, [M] each, at least float32.

        ``states`` is for :meth:`as_reference`. ``kl`` needs ``against``.
        """
        if "states" in outputs:
            padded = isinstance(plan, PaddedPlan)
            made = self._padded_logits(plan) if isinstance(plan, PaddedPlan) else self._hidden(plan)
            return {"logits" if padded else "hidden": made}
        if self.value_head is not None:
            return self._with_values(plan, outputs, temperature, self.value_head, against)
        if isinstance(plan, PaddedPlan):
            logits = self._padded_logits(plan)
            return _read(logits, plan.targets, outputs, temperature, against)
        return self._head(self._hidden(plan), plan.targets, outputs, temperature, against)

    @torch.no_grad()
    def as_reference(self, plan: Plan) -> Against:
        """Run a plan for another model's KL; logits are made where they are needed, in chunks."""
        made = self(plan, ("states",))
        if "logits" in made:
            return Against(made["logits"], lambda states: states)
        head = cast("nn.Linear", self.lm.get_output_embeddings())  # type: ignore[no-untyped-call] # transformers does not type it

        def logits(states: Tensor) -> Tensor:
            with torch.no_grad():
                return cast("Tensor", head(states))

        return Against(made["hidden"], logits)

    def _with_values(
        self,
        plan: Plan,
        outputs: Collection[str],
        temperature: float,
        head: ValueHead,
        against: Against | None,
    ) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if set(outputs) == {"values"}:
            hidden = self._hidden(plan)
        elif isinstance(plan, PaddedPlan):
            # Through the whole model, whose logits may be more than a product with the states.
            states: list[Tensor] = []
            hook = self.lm.base_model.register_forward_hook(lambda *call: states.append(call[2][0]))
            try:
                logits = self._padded_logits(plan)
            finally:
                hook.remove()
            found = _read(logits, plan.targets, outputs, temperature, against)
            hidden = states[0].flatten(0, 1).index_select(0, plan.source)
        else:
            hidden = self._hidden(plan)
            found = self._head(hidden, plan.targets, outputs, temperature, against)
        if "values" in outputs:
            found["values"] = head(hidden)
        return found

    def _padded_logits(self, plan: PaddedPlan) -> Tensor:
        """[M, V] as the model makes them."""
        out = self.lm(input_ids=plan.input_ids, attention_mask=plan.attention_mask, use_cache=False)
        return cast("Tensor", out.logits).flatten(0, 1).index_select(0, plan.source)

    def _hidden(self, plan: Plan) -> Tensor:
        """[M, H] the hidden state that predicts each token."""
        body = cast("Callable[..., Any]", self.lm.base_model)
        if isinstance(plan, PaddedPlan):
            out = body(
                input_ids=plan.input_ids, attention_mask=plan.attention_mask, use_cache=False
            )
            return cast("Tensor", out.last_hidden_state).flatten(0, 1).index_select(0, plan.source)
        # A mask of four dims is taken as it is; the attention function does not look at it.
        out = body(
            input_ids=plan.input_ids,
            attention_mask=plan.input_ids.new_zeros((1, 1, 1, 1)),
            position_ids=plan.position_ids,
            use_cache=False,
            packing=plan.attention,
        )
        hidden = cast("Tensor", out.last_hidden_state)[0]
        taken: Tensor = _Predictors.apply(hidden, plan.first, plan.rest)  # type: ignore[no-untyped-call] # torch does not type it
        return taken

    def _head(
        self,
        hidden: Tensor,
        targets: Tensor,
        outputs: Collection[str],
        temperature: float,
        against: Against | None = None,
    ) -> dict[str, Tensor]:
        head = cast("nn.Linear", self.lm.get_output_embeddings())  # type: ignore[no-untyped-call] # transformers does not type it
        chunk = max(1, self.logits_chunk // head.out_features)
        if len(hidden) <= chunk:
            return _read(head(hidden), targets, outputs, temperature, against)

        def part(start: int, h: Tensor, ids: Tensor) -> dict[str, Tensor]:
            near = against and Against(against.states[start : start + chunk], against.head)
            return _read(head(h), ids, outputs, temperature, near)

        parts = [
            cast("dict[str, Tensor]", checkpoint(part, i * chunk, h, ids, use_reentrant=False))
            for i, (h, ids) in enumerate(
                zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
            )
        ]
        return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def _read(
    logits: Tensor,
    targets: Tensor,
    outputs: Collection[str],
    temperature: float,
    against: Against | None = None,
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if "kl" in outputs and against is not None:
        found["kl"] = full_kl(logits, against.head(against.states), temperature)
    if "logprobs" in outputs:
        found["logprobs"] = token_logprobs(logits, targets, temperature)
    if "entropy" in outputs:
        found["entropy"] = entropy_from_logits(logits, temperature)
    if "probs_squared" in outputs:
        found["probs_squared"] = probs_squared(logits, temperature)
    return found


class _Predictors(torch.autograd.Function):
    """Rows ``first``, then rows ``rest:``; the second part's gradient is a plain copy."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, first: Tensor, rest: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(first)
        ctx.rest, ctx.shape = rest, hidden.shape
        return torch.cat([hidden.index_select(0, first), hidden[rest:]])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (first,) = ctx.saved_tensors
        out = grad.new_empty(ctx.shape)
        out[: ctx.rest] = 0
        out[ctx.rest :] = grad[len(first) :]
        out.index_add_(0, first, grad[: len(first)])
        return out, None, None
