"""A model by path as a scorer: sequence classifiers, and bestiary's own reward and cost models."""

from collections.abc import Iterator, Sequence
from typing import Any

from bestiary.errors import ModelError
from bestiary.protocols import Configured, Sample
from bestiary_scorers.models import Loaded, load
from bestiary_scorers.options import ClassifierOptions

MESSAGES = "messages"
"""Key of ``Sample.extra``: the messages of a prompt that is a conversation."""


class Classifier(Configured):
    """One number for prompt and response: a logit of a classifier, or a value head's score.

    A value head scores the state of the last token of the text, where its training put it (before
    the end token), with prompt and response tokenised apart as there. Loaded once, when the scorer
    is built. A text without any token is invalid (None).

    Raises:
        ModelError: if there is no model at the path, or a part of it is missing.
    """

    options: ClassifierOptions

    def __init__(self, options: ClassifierOptions) -> None:
        super().__init__(options)
        if not options.path:
            raise ModelError(
                "the scorer 'classifier' has no model",
                hint="set reward.path (or cost.path) to a folder or a hub name",
            )
        try:
            self._loaded: Loaded = load(options)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelError(
                f"scorer {options.path!r} cannot be loaded: {type(error).__name__}: {error}",
                hint="a sequence classifier with safetensors weights, or RUN/model of "
                "algorithm=reward_model or cost_model, is wanted",
            ) from error

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        """A number for each sample; batches are of similar lengths and padded on the right."""
        import torch

        o = self.options
        ids = [self._ids(sample) for sample in samples]
        scores: list[float | None] = [None] * len(ids)
        with torch.no_grad():
            for chosen in batches([len(row) for row in ids], o.batch, o.tokens):
                found = self._scores([ids[i] for i in chosen])
                for i, score in zip(chosen, found, strict=True):
                    scores[i] = (score - o.mean) / o.std
        return scores

    # ------------------------------------------------------------------ text

    def _ids(self, sample: Sample) -> list[int]:
        """The tokens that are scored: the last ``limit`` of prompt and response."""
        if self._loaded.head is not None:
            return self._trained_ids(sample)[-self._loaded.limit :]
        o, tokenizer = self.options, self._loaded.tokenizer
        if o.chat:
            messages = [*_messages(sample), {"role": "assistant", "content": sample.response}]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
        else:
            text = o.template.format(prompt=sample.prompt, response=sample.response)
        # A chat template writes its special tokens itself.
        ids = tokenizer(
            text, add_special_tokens=not o.chat, truncation=True, max_length=self._loaded.limit
        )["input_ids"]
        return _one_start(list(ids), tokenizer)

    def _trained_ids(self, sample: Sample) -> list[int]:
        """As training has them: those of the prompt, then those of the response."""
        o, tokenizer = self.options, self._loaded.tokenizer
        if o.chat:
            before, after = (
                tokenizer.apply_chat_template(
                    _messages(sample), tokenize=False, add_generation_prompt=True
                ),
                sample.response,
            )
        else:
            start, _, end = o.template.partition("{response}")
            before = start.format(prompt=sample.prompt)
            after = sample.response + end.format(prompt=sample.prompt)
        rendered = o.chat or MESSAGES in sample.extra
        prompt = tokenizer(before, add_special_tokens=not rendered)["input_ids"]
        if not rendered and prompt[-1:] == [tokenizer.eos_token_id]:
            prompt = prompt[:-1]  # a tokenizer that ends each text; this one goes on
        response = tokenizer(after, add_special_tokens=False)["input_ids"]
        return _one_start([*prompt, *response], tokenizer)

    # ------------------------------------------------------------------ model

    def _scores(self, rows: list[list[int]]) -> list[float]:
        import torch

        o, loaded = self.options, self._loaded
        pad = self._pad(rows)
        width = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=o.device)
        lengths = torch.tensor([len(row) for row in rows], device=o.device)
        mask = (torch.arange(width, device=o.device)[None] < lengths[:, None]).long()
        if loaded.head is not None:
            hidden = loaded.model(input_ids=ids, attention_mask=mask, use_cache=False)
            state = hidden.last_hidden_state[torch.arange(len(rows)), lengths - 1].float()
            found = state @ loaded.head[0] + loaded.head[1]
        else:
            logits = loaded.model(input_ids=ids, attention_mask=mask).logits.float()
            if o.output == "softmax":
                logits = torch.softmax(logits, -1)
            found = logits[:, o.label]
        found = torch.sigmoid(found) if o.output == "sigmoid" else found
        return [float(x) for x in found]

    def _pad(self, rows: list[list[int]]) -> int:
        """The id that fills rows up.

        Classifiers on decoders score the last token that is no pad, so a text that ends with the
        pad token (often the end token) would be scored one token early: there an id is taken that
        the rows do not have.
        """
        loaded = self._loaded
        if loaded.head is None and not hasattr(loaded.model, "score"):
            pad = loaded.tokenizer.pad_token_id
            return int(0 if pad is None else pad)
        used = {token for row in rows for token in row}
        pad = next(i for i in range(len(used) + 1) if i not in used)
        loaded.model.config.get_text_config().pad_token_id = pad
        return pad


def batches(lengths: Sequence[int], rows: int, tokens: int) -> Iterator[list[int]]:
    """Indices of texts in batches of similar lengths; texts without tokens are left out.

    Args:
        lengths: tokens of each text.
        rows: texts of a batch at most.
        tokens: tokens of a batch at most, padding included; one text may have more.
    """
    order = sorted((i for i, n in enumerate(lengths) if n), key=lambda i: (lengths[i], i))
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) == rows or (len(batch) + 1) * lengths[i] > tokens):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _messages(sample: Sample) -> list[dict[str, str]]:
    """The prompt as messages: its own, or one of the user."""
    own = sample.extra.get(MESSAGES)
    return [dict(m) for m in own] if own else [{"role": "user", "content": sample.prompt}]


def _one_start(ids: list[int], tokenizer: Any) -> list[int]:  # noqa: ANN401 - of transformers
    """Without a second start token, which a template and a tokenizer may both write."""
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids
