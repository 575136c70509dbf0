"""Tiny causal language models of real transformers architectures, with bytes as tokens."""

from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bestiary.errors import ModelError
from bestiary.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Arch = Literal["llama", "qwen2", "qwen3", "gpt2"]
ARCHS: tuple[str, ...] = get_args(Arch)

SPECIALS = ("<pad>", "<bos>", "<eos>")
PAD, BOS, EOS = range(3)
VOCAB_SIZE = len(SPECIALS) + 256
"""Id of byte ``b`` is ``len(SPECIALS) + b``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyOptions:
    """The shape of a tiny model; the defaults have 1.1 million parameters."""

    arch: Arch = "llama"
    """Architecture: RoPE (llama, qwen2, qwen3) or learned positions (gpt2)."""
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0
    """Key-value heads; 0 is as many as heads. gpt2 has no grouped-query attention."""
    intermediate: int = 0
    """Width of the MLP; 0 is four times ``hidden``."""
    positions: int = 512
    """Longest sequence in tokens."""
    tied: bool = False
    """Share the embedding with the output layer."""
    add_bos: bool = False
    """The tokenizer puts ``<bos>`` before each text."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.arch not in ARCHS:
            raise ModelError(
                f"tiny model: arch={self.arch!r} is unknown", hint=f"choose from {', '.join(ARCHS)}"
            )
        kv = self.kv_heads or self.heads
        if min(self.hidden, self.layers, self.heads, kv, self.positions) < 1:
            raise ModelError(
                f"tiny model: hidden={self.hidden} layers={self.layers} heads={self.heads} "
                f"kv_heads={self.kv_heads} positions={self.positions}: each must be at least 1"
            )
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ModelError(
                f"tiny model: hidden={self.hidden} with heads={self.heads}: the width of a head "
                "must be a whole even number"
            )
        if self.heads % kv:
            raise ModelError(f"tiny model: heads={self.heads} is no multiple of kv_heads={kv}")
        if self.arch == "gpt2" and kv != self.heads:
            raise ModelError(f"tiny model: gpt2 has no kv_heads={self.kv_heads}; leave it at 0")


def parse_tiny(text: str) -> TinyOptions:
    """``"arch=qwen2,hidden=64"`` → options; the empty text is the default model."""
    known = {f.name: f for f in fields(TinyOptions)}
    values: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ModelError(
                f"tiny model: unknown option {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}",
            )
        values[name] = _convert(name, value, type(known[name].default))
    return TinyOptions(**values)


def _convert(name: str, value: str, kind: type) -> str | int | bool:
    if kind is bool:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif kind is int:
        if value.lstrip("-").isdigit():
            return int(value)
    else:
        return value
    raise ModelError(f"tiny model: {name}={value!r} is not {'an int' if kind is int else 'a bool'}")


def build_tiny(folder: Path, options: TinyOptions | None = None) -> Path:
    """Write a freshly initialised model and its tokenizer in ``save_pretrained`` layout.

    The weights depend on the options only (the caller's random state is left alone).

    Args:
        folder: made if it is not there.
        options: the shape; the default model when None.

    Returns:
        ``folder``.
    """
    import torch
    from transformers import AutoModelForCausalLM

    options = options or TinyOptions()
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # untyped
            _config(options), dtype=torch.float32
        )
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = EOS
    with quiet_transformers():
        model.save_pretrained(folder)
    byte_tokenizer(options.positions, add_bos=options.add_bos).save_pretrained(folder)
    return folder


def _config(options: TinyOptions) -> Any:  # noqa: ANN401 - transformers' own config classes
    from transformers import AutoConfig

    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "vocab_size": VOCAB_SIZE}
    common = {**ids, "tie_word_embeddings": options.tied, "architectures": None}
    if options.arch == "gpt2":
        return AutoConfig.for_model(
            "gpt2",
            **common,
            n_embd=options.hidden,
            n_layer=options.layers,
            n_head=options.heads,
            n_inner=options.intermediate or 4 * options.hidden,
            n_positions=options.positions,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    return AutoConfig.for_model(
        options.arch,
        **common,
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads or options.heads,
        head_dim=options.hidden // options.heads,
        intermediate_size=options.intermediate or 4 * options.hidden,
        max_position_embeddings=options.positions,
    )


def byte_tokenizer(positions: int = 512, *, add_bos: bool = False) -> "PreTrainedTokenizerFast":
    """A fast tokenizer with one token a byte: 256 bytes, pad, bos and eos; any text round-trips."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {text: i for i, text in enumerate((*SPECIALS, *_byte_letters()))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    if add_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)]
        )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # untyped
        tokenizer_object=core,
        pad_token=SPECIALS[PAD],
        bos_token=SPECIALS[BOS],
        eos_token=SPECIALS[EOS],
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [letters[byte] for byte in range(256)]


def tiny_key(options: TinyOptions) -> dict[str, Any]:
    """What the content of a tiny model depends on, as the key of its cache entry."""
    from importlib.metadata import version

    versions = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    return {"format": 1, **asdict(options), **versions}
