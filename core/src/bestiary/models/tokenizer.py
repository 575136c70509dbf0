"""Prompts and targets to token ids, responses to text, and the ids that end a response.

Ids are made once, from what the user wrote. Text that is decoded from sampled ids is for parsing
and reading only; it is never tokenised again.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bestiary.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ChatTemplate = Literal["auto", "always", "never"]
Messages = Sequence[Mapping[str, str]]
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


class Tokenizer:
    """The tokenizer of a model folder.

    Args:
        folder: in ``save_pretrained`` layout.

    Raises:
        ModelError: if there is none, it has no end token, or it needs code of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._hf = _load(self.folder)
        if self._hf.eos_token_id is None:
            raise ModelError(
                f"the tokenizer of {folder} has no end token",
                hint="set eos_token in its tokenizer_config.json",
            )
        self.eos_id: int = int(self._hf.eos_token_id)
        """Put after targets."""
        self.eos_ids: tuple[int, ...] = _eos_ids(self.folder, self.eos_id)
        """Every id that ends a response (a generation config may name several)."""
        pad = self._hf.pad_token_id
        self.pad_id: int = self.eos_id if pad is None else int(pad)
        """May equal ``eos_id``: padding is told by lengths, never by this id."""
        self.bos_id: int | None = self._hf.bos_token_id

    def __len__(self) -> int:
        """Number of ids, added ones included."""
        return len(self._hf)

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._hf.chat_template is not None

    # ------------------------------------------------------------------ prompts

    def render(self, prompt: str | Messages, chat_template: ChatTemplate = "auto") -> str:
        """The text of a prompt as the model sees it.

        ``auto`` renders messages with the chat template and leaves plain text alone; ``always``
        takes plain text as one message of the user; ``never`` puts the contents on lines.
        Without a template a single message is its content.

        Raises:
            ModelError: if a template is needed and there is none, or it refuses the messages.
        """
        if self._uses_template(prompt, chat_template):
            return self._apply_template(_as_messages(prompt))
        if isinstance(prompt, str):
            return prompt
        if chat_template != "never" and len(prompt) > 1:
            raise self._no_template(f"a conversation of {len(prompt)} messages")
        return "\n".join(message["content"] for message in prompt)

    def _uses_template(self, prompt: str | Messages, mode: ChatTemplate) -> bool:
        if mode not in ("auto", "always", "never"):
            raise ModelError(f"chat_template={mode!r}", hint="choose auto, always or never")
        if mode == "always" and not self.has_chat_template:
            raise self._no_template("chat_template=always")
        return (
            mode != "never"
            and self.has_chat_template
            and (mode == "always" or not isinstance(prompt, str))
        )

    def _no_template(self, what: str) -> ModelError:
        return ModelError(
            f"{what} needs a chat template, and the tokenizer of {self.folder} has none",
            hint="use an instruct model, or model.chat_template=false to join the contents",
        )

    def _apply_template(self, messages: Messages) -> str:
        from jinja2 import TemplateError

        try:
            text = self._hf.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise ModelError(
                f"the chat template of {self.folder} refuses roles "
                f"{[message.get('role') for message in messages]}: {error}"
            ) from error
        return str(text)

    def encode_prompt(
        self, prompt: str | Messages, chat_template: ChatTemplate = "auto"
    ) -> list[int]:
        """Ids of a prompt, ready for generation.

        A template writes its special tokens itself, so none are added to what it renders; plain
        text gets those of the tokenizer, except a second start token and an end token.
        """
        text = self.render(prompt, chat_template)
        if self._uses_template(prompt, chat_template):
            return self._encode(text, special=False)
        ids = self._encode(text, special=True)
        if self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            ids = ids[1:]
        # A tokenizer set up for training puts an end token after each text; a prompt is not over.
        if ids[-1:] == [self.eos_id]:
            written = self._encode(text, special=False).count(self.eos_id)
            ids = ids[:-1] if ids.count(self.eos_id) > written else ids
        return ids

    def encode_target(self, text: str) -> list[int]:
        """Ids of a response to imitate, the end token included."""
        return [*self._encode(text, special=False), self.eos_id]

    def _encode(self, text: str, *, special: bool) -> list[int]:
        # verbose=False: the length limit is the caller's business, with an error or a count.
        return list(self._hf.encode(text, add_special_tokens=special, verbose=False))

    # ------------------------------------------------------------------ text

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        return str(
            self._hf.decode(
                [int(i) for i in ids],
                skip_special_tokens=skip_special,
                clean_up_tokenization_spaces=False,
            )
        )


class Decoder:
    """Decodes without transformers where the folder has a ``tokenizer.json``: for reward workers.

    Args:
        folder: a model folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def _core(self) -> Any:  # noqa: ANN401 - tokenizers.Tokenizer has no type stubs
        from tokenizers import Tokenizer as Core

        return Core.from_file(str(self.folder / "tokenizer.json"))

    @cached_property
    def _full(self) -> Tokenizer:
        return Tokenizer(self.folder)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        if not (self.folder / "tokenizer.json").is_file():
            return self._full.decode(ids)
        return str(self._core.decode([int(i) for i in ids], skip_special_tokens=True))


def _as_messages(prompt: str | Messages) -> Messages:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _load(folder: Path) -> "PreTrainedTokenizerBase":
    config = _read(folder / "tokenizer_config.json")
    try:
        if config.get("tokenizer_class") in _GENERIC and (folder / "tokenizer.json").is_file():
            # Exactly what tokenizer.json says, and no torch: AutoTokenizer imports it, and for
            # some model types it puts its own normaliser in place of the file's.
            from transformers import PreTrainedTokenizerFast

            fast: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True
            )
            return fast
        from transformers import AutoTokenizer

        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        return found
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"the tokenizer of {folder} cannot be loaded: {type(error).__name__}: {reason}",
            hint="a folder written by tokenizer.save_pretrained is wanted; remote code is not run",
        ) from error


def _eos_ids(folder: Path, own: int) -> tuple[int, ...]:
    named = _read(folder / "generation_config.json").get("eos_token_id")
    if named is None:
        named = _read(folder / "config.json").get("eos_token_id")
    listed = [named] if isinstance(named, int) else list(named or ())
    return tuple(sorted({own, *(int(i) for i in listed)}))


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON: {error}") from error
    return content if isinstance(content, dict) else {}
