"""LoRA: adapters on frozen base weights, by peft; merged in float32 for everything that leaves.

Source: Hu et al. 2022, arXiv:2106.09685.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bestiary.engines.fsdp.options import LoRAOptions
from bestiary.errors import ModelError

_BASE, _A, _B = ".base_layer.", ".lora_A.default.", ".lora_B.default."


def config_of(options: LoRAOptions, base: str = "") -> Any:  # noqa: ANN401 - peft's LoraConfig
    """The adapter's configuration as peft writes it."""
    from peft import LoraConfig

    targets = options.targets
    return LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules="all-linear" if targets == ("all-linear",) else list(targets),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )


def insert(lm: nn.Module, options: LoRAOptions) -> None:
    """Put adapters into a model in place; only they require gradients afterwards.

    The adapters start as the identity (B = 0), the same on every rank.

    Raises:
        ModelError: if no module fits the targets.
    """
    from peft import inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    config = config_of(options)
    config.fan_in_fan_out = any(isinstance(module, Conv1D) for module in lm.modules())
    if config.target_modules == "all-linear":
        config.target_modules = _all_linear(lm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        try:
            inject_adapter_in_model(config, lm)
        except ValueError as error:
            raise ModelError(
                f"LoRA found nothing to adapt in {type(lm).__name__}: {error}",
                hint="train_engine.lora.targets names linear layers of this architecture",
            ) from error


def _all_linear(lm: nn.Module) -> list[str]:
    """Names of all linear layers but the output layer (transformers' Conv1D among them)."""
    from transformers.pytorch_utils import Conv1D

    output = lm.get_output_embeddings()  # type: ignore[operator] # transformers
    return [
        name
        for name, module in lm.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not output
    ]


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


def merged(
    whole: Iterator[tuple[str, Tensor]], module: nn.Module, options: LoRAOptions
) -> Iterator[tuple[str, Tensor]]:
    """Whole base parameters with W + (α/r)·B·A in place of W, under the base's own names.

    Args:
        whole: every parameter by its checkpoint name; a layer's base, A and B are neighbours.
        module: what they belong to, for the layout of its weights.
        options: rank and scale.
    """
    transposed = _transposed(module)
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
            change = options.alpha / options.rank * (parts["B"] @ parts["A"])
            change = change.t() if layer in transposed else change
            yield f"{layer}.weight", parts["W"] + change
            del waiting[layer]


def _split(name: str) -> tuple[str, str]:
    """(layer, W, A, B or the name of another parameter of its base layer; empty if none)."""
    for mark, kind in ((_A, "A"), (_B, "B"), (_BASE, "W")):
        if mark in name:
            layer, _, rest = name.partition(mark)
            return layer, kind if rest == "weight" else rest
    return name, ""


def _transposed(module: nn.Module) -> set[str]:
    """Layers whose weight is [in, out], as transformers' Conv1D has it."""
    return {
        name.removeprefix("lm.")
        for name, part in module.named_modules()
        if getattr(part, "fan_in_fan_out", False)
    }


def adapter_tensors(whole: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The adapters under the names of peft's own files."""
    return {
        f"base_model.model.{name.replace('.default.', '.')}": tensor.detach().float().cpu().clone()
        for name, tensor in whole
        if _A in name or _B in name
    }
