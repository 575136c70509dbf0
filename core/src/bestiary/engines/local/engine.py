"""The local rollout engine: weights in by commit, responses out by continuous batching."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from bestiary.engines.checksum import Checksum
from bestiary.engines.engine_api import Completion, ModelSpec, Ranks, Request, Residency
from bestiary.engines.local import decode_gpt2, decode_llama
from bestiary.engines.local.decoder import Decoder, FastDecoder
from bestiary.engines.local.sampling import Rules
from bestiary.engines.local.scheduler import Rollout, Work
from bestiary.engines.local.stopping import StopTexts
from bestiary.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from bestiary.engines.engine_api import Place
    from bestiary.engines.local.network import Network
    from bestiary.engines.local.options import LocalOptions

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(slots=True)
class _Incoming:
    """Weights between prepare and commit."""

    version: int
    weights: "dict[str, Tensor]" = field(default_factory=dict)
    checksum: Checksum = field(default_factory=Checksum)


class LocalEngine:
    """Draws responses in this process; implements ``RolloutEngine``.

    Args:
        options: how much is decoded at once.
        spec: the model; its folder is read for config, generation config and tokenizer, never
            for weights.
        ranks: gives the device. Each rank generates on its own.
    """

    def __init__(self, options: "LocalOptions", spec: ModelSpec, ranks: Ranks) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        if spec.head != "lm":
            raise EngineError(f"local engine: a model with head={spec.head!r} draws no tokens")
        self.version = -1
        self._options, self._spec = options, spec
        self._device, self._dtype = torch.device(ranks.device), _DTYPES[spec.dtype]
        self._config = AutoConfig.from_pretrained(spec.path)
        with torch.device("meta"):
            blank = cast("Any", AutoModelForCausalLM).from_config(self._config)
        self._shapes = {name: p.shape for name, p in blank.named_parameters()}
        self._aliases = _tied_names(blank)
        self._vocab = int(blank.get_output_embeddings().weight.shape[0])
        self._positions = _max_positions(self._config)
        self._decoder = _decoder(type(blank).__name__, self._config, self._dtype, self._device)
        self._ends = _end_tokens(spec.path, self._config, self._vocab)
        self._stops: StopTexts | None = None
        self._incoming: _Incoming | None = None
        self._place: Place = "freed"

    # ------------------------------------------------------------------ weights

    def prepare(self, version: int) -> None:
        """Announce new weights; until they are committed nothing can be generated."""
        self._incoming = _Incoming(version)
        self._place = "freed"
        self._decoder.drop()

    def write(self, bucket: "Mapping[str, Tensor]") -> None:
        """Take a bucket of whole parameters; they are copied in the compute dtype."""
        if self._incoming is None:
            raise EngineError("local engine: write before prepare(version)")
        for name, tensor in bucket.items():
            self._take(self._incoming, name, tensor)

    def _take(self, incoming: _Incoming, name: str, tensor: "Tensor") -> None:
        own = self._aliases.get(name, name)
        shape = self._shapes.get(own)
        problem = ""
        if shape is None:
            problem = f"unknown parameter {name!r}"
        elif shape != tensor.shape:
            problem = f"{name!r} has shape {tuple(tensor.shape)}, wanted {tuple(shape)}"
        elif own in incoming.weights:
            problem = f"{name!r} was written twice"
        if problem:
            self._incoming = None
            raise EngineError(
                f"local engine, weights of version {incoming.version}: {problem}",
                hint="the trainer's model and the one of the rollout engine must be the same",
            )
        incoming.checksum.add(name, tensor)
        copied = torch.empty(tensor.shape, dtype=self._dtype, device=self._device)
        incoming.weights[own] = copied.copy_(tensor.detach())

    def commit(self, checksum: str) -> None:
        """Put the written weights to use; whatever older weights made is dropped."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            raise EngineError("local engine: commit before prepare(version)")
        missing = sorted(self._shapes.keys() - incoming.weights.keys())
        if missing:
            raise EngineError(
                f"local engine, weights of version {incoming.version}: {len(missing)} of "
                f"{len(self._shapes)} parameters were not written, as {missing[0]!r}"
            )
        own = incoming.checksum.hexdigest()
        if own != checksum:
            raise EngineError(
                f"local engine, weights of version {incoming.version}: checksum {own} differs "
                f"from the trainer's {checksum}",
                hint="a bucket was changed on its way; nothing is generated until the next commit",
            )
        with torch.inference_mode():
            self._decoder.load(incoming.weights)
        self._place = "device"
        self.version = incoming.version

    # ------------------------------------------------------------------ generation

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Draw all responses of all requests."""
        if self._place != "device":
            raise EngineError(
                f"local engine: weights are {self._state()}, nothing can be generated",
                hint="complete prepare, write and commit, or bring the weights back to the device",
            )
        for number, request in enumerate(requests):
            self._check(number, request)
        work = Work.of(requests)
        slots, length = self._room(work)
        if not slots:
            return [[] for _ in requests]
        fixed = self._options.deterministic
        self._decoder.reserve(slots, length, fixed=fixed)
        rollout = Rollout(
            self._decoder,
            work,
            Rules(work.samplings, self._device),
            slots=slots,
            prefill_tokens=1 if fixed else self._options.prefill_tokens,
            ends=self._ends,
            stops=self._stop_texts(work),
            version=self.version,
        )
        try:
            done = iter(rollout.run())
        except EngineError:
            self._decoder.free()  # it may hold NaN, which masks do not hide
            raise
        return [[next(done) for keys in r.keys for _ in keys] for r in requests]

    def _check(self, number: int, request: Request) -> None:
        """Refuse what cannot be drawn."""
        size = len(request.prompt_ids)
        if size == 0:
            raise EngineError(f"local engine: the prompt of request {number} is empty (0 tokens)")
        low, high = int(np.min(request.prompt_ids)), int(np.max(request.prompt_ids))
        if low < 0 or high >= self._vocab:
            raise EngineError(
                f"local engine: request {number} has token id {low if low < 0 else high}, the "
                f"model's ids are 0 to {self._vocab - 1}"
            )
        counts = [len(keys) for keys in request.keys]
        wanted = [s.n for s in request.samplings]
        if counts != wanted:
            raise EngineError(
                f"local engine: request {number} has {counts} keys for samplings with n={wanted}"
            )
        most = max((s.max_tokens for s in request.samplings), default=0)
        if self._positions and size + most > self._positions:
            raise EngineError(
                f"local engine: request {number} has {size} prompt tokens and max_tokens={most}, "
                f"together more than the model's {self._positions} positions",
                hint="shorten the prompt or lower sampling max_tokens",
            )

    def _room(self, work: Work) -> tuple[int, int]:
        """(rows, positions of each) within the budget of KV tokens."""
        options, longest = self._options, work.longest()
        slots = min(options.slots, len(work.prompt))
        if options.deterministic:
            slots = min(options.slots, self._decoder.fixed_rows or options.slots)
            length = options.kv_tokens // options.slots
            length = min(length, self._positions) if self._positions else length
        else:
            slots = min(slots, options.kv_tokens // max(longest, 1))
            length = longest | 1  # an odd stride keeps rows apart in the CPU's caches
        if work.prompt.size and (slots < 1 or longest > length):
            raise EngineError(
                f"local engine: a sample may take {longest} tokens, but there is room for "
                f"{length if options.deterministic else options.kv_tokens}",
                hint="raise kv_tokens of the rollout engine (or lower slots, when deterministic)",
            )
        return (slots if work.prompt.size else 0), length

    def _stop_texts(self, work: Work) -> StopTexts | None:
        if not any(s.stop for s in work.samplings):
            return None
        if self._stops is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self._spec.path)
            self._stops = StopTexts(tokenizer, self._vocab)
        return self._stops

    # ------------------------------------------------------------------ residency

    def residency(self, want: Residency) -> Mapping[str, Any]:
        """Move or free weights and KV memory; gradients and optimizer are the trainer's.

        Freed weights come back with the next commit. KV memory holds nothing between calls, so
        that ``host`` frees it too; it is laid out again by the next call.

        Returns:
            ``freed_bytes``, ``moved_bytes``, and what is held then: ``weight_bytes``, ``kv_bytes``.
        """
        freed = moved = 0
        if want.kv != "device":
            freed += self._decoder.free()
        if want.weights != self._place and self._place != "freed":
            if want.weights == "freed":
                freed += self._decoder.weight_bytes()
                self._decoder.drop()
            else:
                if self._device.type != "cpu":
                    moved = self._decoder.weight_bytes()
                on_device = want.weights == "device"
                self._decoder.to(self._device if on_device else torch.device("cpu"))
            self._place = want.weights
        held = self._decoder.weight_bytes() if self._place != "freed" else 0
        return {
            "freed_bytes": freed,
            "moved_bytes": moved,
            "weight_bytes": held,
            "kv_bytes": self._decoder.kv_bytes(),
        }

    def _state(self) -> str:
        if self._incoming is not None:
            return f"being written (version {self._incoming.version})"
        return "on the host" if self._place == "host" else "not committed"


def _decoder(
    architecture: str,
    config: Any,  # noqa: ANN401 - transformers
    dtype: torch.dtype,
    device: torch.device,
) -> Decoder:
    """A hand-written decoder where one covers all that the config asks for."""
    network: Network
    if decode_llama.supports(architecture, config):
        network = decode_llama.LlamaNetwork(config, device)
    elif decode_gpt2.supports(architecture, config):
        network = decode_gpt2.GPT2Network(config, device)
    else:
        from bestiary.engines.local.decode_hf import HFDecoder

        return HFDecoder(config, dtype, device)
    return FastDecoder(network, dtype, device)


def _tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Other names of tied parameters, with the one that counts."""
    first = {id(p): name for name, p in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}


def _max_positions(config: Any) -> int:  # noqa: ANN401 - transformers
    """Positions that the model has, 0 for no limit."""
    return int(getattr(config, "max_position_embeddings", 0) or 0)


def _end_tokens(path: str, config: Any, vocab: int) -> "NDArray[np.bool_]":  # noqa: ANN401 - transformers
    """[V] True for end tokens: those of the generation config, else of the model's config."""
    ends: Any = None
    if (Path(path) / "generation_config.json").is_file():
        from transformers import GenerationConfig

        ends = GenerationConfig.from_pretrained(path).eos_token_id
    if ends is None:
        ends = config.eos_token_id
    table = np.zeros(vocab, dtype=np.bool_)
    for token in ends if isinstance(ends, (list, tuple)) else [ends]:
        if token is not None and 0 <= token < vocab:
            table[token] = True
    return table
