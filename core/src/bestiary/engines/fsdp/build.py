"""Build the module of an engine: load, replace the head, choose the forward pass, checkpointing."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.checkpoint import checkpoint

from bestiary.engines.engine_api import ModelSpec
from bestiary.engines.fsdp import linear
from bestiary.engines.fsdp.attention import IMPLEMENTATION, register
from bestiary.engines.fsdp.forward import Net
from bestiary.engines.fsdp.lora import Adapter, insert
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.engines.fsdp.support import check_all_used, packing_obstacle, packing_works
from bestiary.models.files import VALUE_HEAD_FILE
from bestiary.models.heads import ValueHead
from bestiary.models.loading import decoder_layers, load_causal_lm

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """What an engine starts from.

    Args:
        net: the module with float32 weights on its device.
        packed: whether it runs packed.
        adapter: the LoRA adapter inside of it, if there is one.
    """

    net: Net
    packed: bool
    adapter: Adapter | None


def build_net(options: FSDPOptions, spec: ModelSpec, device: torch.device) -> Built:
    """The module of an engine."""
    register()
    lm = load_causal_lm(spec.path, attention="sdpa")
    head = None
    if spec.head != "lm":
        embedding = cast("nn.Embedding", lm.get_input_embeddings())
        head = ValueHead(embedding.weight.shape[1])
        stored = Path(spec.path) / VALUE_HEAD_FILE
        if stored.is_file():
            head.load_state_dict(load_file(str(stored)))
    if spec.head == "value":
        # An untied output layer would be trained by nothing.
        lm.set_output_embeddings(nn.Identity())  # type: ignore[no-untyped-call] # transformers
    adapter = None
    if options.lora is not None and spec.trainable:
        adapter = insert(lm, options.lora, spec.path)
    net = Net(lm, head, options.logits_chunk).to(device).eval()
    packed = options.packing == "packed" and _packs(net)
    if spec.trainable:
        check_all_used(net)
    if options.fast_linear and device.type == "cpu" and spec.dtype == "fp32" and linear.available():
        linear.speed_up(net)
    if options.activation_checkpointing and spec.trainable:
        for layer in decoder_layers(lm):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return Built(net, packed, adapter)


def _packs(net: Net) -> bool:
    """Switch the model to packed attention; if it does not fit, leave it as it was and say so."""
    reason = packing_obstacle(net.lm)
    if not reason:
        net.lm.set_attn_implementation(IMPLEMENTATION)
        if packing_works(net):
            return True
        net.lm.set_attn_implementation("sdpa")
        reason = "packed and padded log-probabilities differ"
    _log.warning("%s runs padded instead of packed: %s", type(net.lm).__name__, reason)
    return False
