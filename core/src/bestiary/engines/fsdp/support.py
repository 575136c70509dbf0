"""Which models the packed forward pass covers, found by looking and by trying."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from bestiary.batch import Ragged
from bestiary.engines.fsdp.forward import Net, Plan, pad
from bestiary.engines.fsdp.layout import checkpoint_names
from bestiary.engines.fsdp.packing import pack
from bestiary.errors import ModelError

_log = logging.getLogger(__name__)

_AGREE = 1e-3
"""Nats by which the two forward passes of the probe may differ in float32."""


def packing_obstacle(lm: PreTrainedModel) -> str:
    """Why the configuration rules packing out; empty if it does not."""
    config = lm.config
    if not getattr(lm, "_supports_attention_backend", False):
        return "its attention does not go through the attention interface"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"it has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}"
    sliding = getattr(config, "sliding_window", None)
    if sliding is not None and getattr(config, "use_sliding_window", True):
        return f"it has a sliding window of {sliding} tokens"
    rope = getattr(config, "rope_parameters", None) or {}
    moving = {"dynamic", "longrope"} & set(_rope_types(rope))
    if moving:
        return f"its rotary embedding ({', '.join(moving)}) depends on the longest row"
    return ""


def _rope_types(rope: Mapping[str, Any]) -> Iterator[str]:
    for name, value in rope.items():
        if isinstance(value, Mapping):
            yield from _rope_types(value)
        elif name == "rope_type":
            yield str(value)


def packing_works(net: Net) -> bool:
    """Compare the packed with the padded forward pass on three short rows of float32 weights.

    It notices what no list of architectures would: scaled or capped logits, attention that takes
    another way, position ids that are not honoured.
    """
    vocab = int(net.lm.config.vocab_size)
    prompts = Ragged.from_rows([_ids(3, vocab), _ids(3, vocab), _ids(2, vocab)])
    responses = Ragged.from_rows([_ids(4, vocab, 5), _ids(2, vocab, 9), _ids(3, vocab, 2)])
    device = next(net.parameters()).device
    plan, plain = pack(prompts, responses, device), pad(prompts, responses, device)
    try:
        with torch.no_grad():
            pairs = list(zip(_said(net, plan), _said(net, plain), strict=True))
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        _log.info("packing probe of %s failed: %s", type(net.lm).__name__, error)
        return False
    # Both orders are brought to that of the rows.
    order, plain_order = plan.place.argsort(), plain.place.argsort()
    return all(_agree(ours[order], theirs[plain_order]) for ours, theirs in pairs)


def _said(net: Net, plan: Plan) -> list[torch.Tensor]:
    """What the heads of a model read or say, [M, ...] each."""
    found = []
    if "logprobs" in net.fields:
        found.append(net(plan, {"logprobs"})["logprobs"])
    if net.value_head is not None:
        # It starts at zero and would hide everything, so hidden states are compared.
        found.append(net._hidden(plan))
    return found


def _agree(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    # Log-probabilities in nats; states, which have a last dim, relative to the largest.
    scale = max(1.0, float(theirs.abs().max())) if theirs.dim() > 1 else 1.0
    return bool((ours - theirs).abs().max() <= _AGREE * scale)


def _ids(n: int, vocab: int, start: int = 1) -> list[int]:
    return [(start * 7 + 3 * i) % vocab for i in range(n)]


def _leaves(outputs: Iterable[torch.Tensor]) -> set[int]:
    """The ids of the tensors that the outputs' gradients reach; nothing is computed."""
    waiting: list[Any] = [x.grad_fn for x in outputs]
    seen: set[Any] = set()
    leaves: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        waiting.extend(following for following, _ in node.next_functions)
    return leaves


def check_all_used(net: Net) -> None:
    """Refuse a module with a parameter that no output depends on.

    Raises:
        ModelError: naming the parameters.
    """
    prompts, responses = Ragged.from_rows([[1, 2]]), Ragged.from_rows([[1, 2]])
    outputs = net.fields
    named = {n: p for n, p in checkpoint_names(net).items() if p.requires_grad}
    plan = pad(prompts, responses, next(net.parameters()).device)
    used = _leaves(net(plan, outputs).values())
    unused = [name for name, p in named.items() if id(p) not in used]
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise ModelError(
            f"no output of {type(net.lm).__name__} depends on {', '.join(unused[:3])}{more}",
            hint="it would never be trained; remove it from the model",
        )
