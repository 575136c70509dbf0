"""LoRA: adapters on frozen base weights, by peft; merged in float32 for everything that leaves.

Source: Hu et al. 2022, arXiv:2106.09685.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bestiary.engines.checksum import Checksum
from bestiary.engines.fsdp.options import LoRAOptions
from bestiary.errors import EngineError, ModelError
from bestiary.models.adapter import shared_weights
from bestiary.models.heads import VALUE_HEAD_PREFIX

_BASE, _A, _B = ".base_layer.", ".lora_A.default.", ".lora_B.default."


@dataclass(frozen=True, slots=True)
class Adapter:
    """What was put into a model.

    Args:
        options: rank and scale.
        config: peft's ``LoraConfig``, with the layers in place of ``all-linear``.
        transposed: layers whose weight is [in, out], as transformers' Conv1D has it.
        base: checksum of the base weights.
    """

    options: LoRAOptions
    config: Any
    transposed: frozenset[str]
    base: str

    def identity(self) -> dict[str, Any]:
        """What a saved state belongs to, as JSON values."""
        targets = list(self.config.target_modules)
        options = self.options
        return {
            "base": self.base,
            "rank": options.rank,
            "alpha": options.alpha,
            "targets": targets,
        }


def insert(lm: PreTrainedModel, options: LoRAOptions, path: str = "") -> Adapter:
    """Put adapters into a model in place; only they require gradients afterwards.

    The adapters start as the identity (B = 0), the same on every rank.

    Args:
        lm: with float32 weights.
        options: which layers, and how.
        path: of the base model, for the configuration that peft reads.

    Raises:
        ModelError: if a target fits no layer, or one that cannot be adapted.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    layers = _layers(lm, options)
    base = _checksum(lm)
    transposed = frozenset(n for n, layer in layers.items() if isinstance(layer, Conv1D))
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=0.0,
        fan_in_fan_out=bool(transposed),
        base_model_name_or_path=path,
        task_type="CAUSAL_LM",
    )
    config.target_modules = _short(lm, set(layers))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        inject_adapter_in_model(config, lm)
    return Adapter(options, config, transposed, base)


def _layers(lm: PreTrainedModel, options: LoRAOptions) -> dict[str, nn.Module]:
    """The layers that the targets name."""
    from transformers.pytorch_utils import Conv1D

    named = {name: module for name, module in lm.named_modules() if name}
    linear = {n: m for n, m in named.items() if isinstance(m, (nn.Linear, Conv1D))}
    output = lm.get_output_embeddings()  # type: ignore[no-untyped-call] # transformers
    shared = shared_weights(lm)
    kind = type(lm).__name__
    found: dict[str, nn.Module] = {}
    for target in options.targets:
        if target == "all-linear":
            fit = {n: m for n, m in linear.items() if m is not output}
        else:
            fit = {n: m for n, m in named.items() if f".{n}".endswith(f".{target}")}
        for name, module in fit.items():
            if name not in linear:
                raise ModelError(
                    f"train_engine.lora.targets: {target!r} is a {type(module).__name__} of "
                    f"{kind}; a linear layer is wanted"
                )
            if id(module.weight) in shared:
                raise ModelError(
                    f"train_engine.lora.targets: the weight of {name!r} is tied to another layer "
                    f"of {kind}, which an adapter of its own would change too",
                    hint="leave it out, or take a model whose embeddings are not tied",
                )
        if not fit:
            free = (name for name, m in linear.items() if id(m.weight) not in shared)
            ends = sorted({name.rpartition(".")[2] for name in free})
            raise ModelError(
                f"train_engine.lora.targets: {target!r} is no layer of {kind}",
                hint=f"its linear layers: {', '.join(ends)}; or all-linear",
            )
        found |= fit
    return found


def _short(lm: nn.Module, layers: set[str]) -> list[str]:
    """The ends of the layers' names where nothing else has the same, as peft's files have them."""
    ends = {name.rpartition(".")[2] for name in layers}
    same = {name for name, _ in lm.named_modules() if name.rpartition(".")[2] in ends}
    return sorted(ends if same == layers else layers)


def _checksum(lm: nn.Module) -> str:
    total = Checksum()
    for name, p in lm.named_parameters():
        total.add(name, p)
    return total.hexdigest()


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Run the base weights alone: exactly the model without adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [m for m in module.modules() if isinstance(m, BaseTunerLayer)]
    # The flag itself: the public switch also turns requires_grad, which layouts rely on.
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def merged(whole: Iterator[tuple[str, Tensor]], adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    """Whole base parameters with W + (α/r)·B·A in place of W, under the base's own names.

    Args:
        whole: every parameter by its checkpoint name.
        adapter: what they belong to.

    Raises:
        EngineError: if a layer's base, A or B is not among them.
    """
    scale = adapter.options.alpha / adapter.options.rank
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, tensor in whole:
        layer, kind = _split(name)
        if not kind:
            yield name, tensor
            continue
        if kind not in ("W", "A", "B"):  # a bias of the base layer
            yield f"{layer}.{kind}", tensor
            continue
        parts = waiting.setdefault(layer, {})
        parts[kind] = tensor.detach().float()
        if len(parts) == 3:
            change = scale * (parts["B"] @ parts["A"])
            change = change.t() if layer in adapter.transposed else change
            yield f"{layer}.weight", parts["W"] + change
            del waiting[layer]
    if waiting:
        raise EngineError(f"the base weight or adapter of {', '.join(sorted(waiting))} is missing")


def _split(name: str) -> tuple[str, str]:
    """(layer, W, A, B or the name of another parameter of its base layer; empty if none)."""
    for mark, kind in ((_A, "A"), (_B, "B"), (_BASE, "W")):
        if mark in name:
            layer, _, rest = name.partition(mark)
            return layer, kind if rest == "weight" else rest
    return name, ""


def adapter_tensors(trained: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """What was trained, under the names of peft's own files; a value head keeps its own."""
    found = {}
    for name, tensor in trained:
        if not name.startswith(VALUE_HEAD_PREFIX):
            name = f"base_model.model.{name.replace('.default.', '.')}"
        found[name] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
    return found
