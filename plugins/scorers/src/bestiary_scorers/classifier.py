"""A model by path as a scorer: sequence classifiers, and bestiary's own reward and cost models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bestiary.errors import ModelError
from bestiary.protocols import Configured, Sample
from bestiary_scorers.options import ClassifierOptions

VALUE_HEAD = "value_head.safetensors"
"""What a model that bestiary trained with a value head has beside its weights."""


class Classifier(Configured):
    """One number for prompt and response: a logit of a classifier, or a value head's score.

    A value head scores the state of the last token of the text, where its training put it (before
    the end token). Loaded once, when the scorer is built.

    Raises:
        ModelError: if there is no model at the path, or it needs code of its own.
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
            self._load(options)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelError(
                f"scorer {options.path!r} cannot be loaded: {type(error).__name__}: {error}",
                hint="a sequence classifier with safetensors weights, or RUN/model of "
                "algorithm=reward_model or cost_model, is wanted",
            ) from error

    def _load(self, o: ClassifierOptions) -> None:
        import torch
        from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

        dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
        own = Path(o.path) / VALUE_HEAD
        base, adapter = _adapter(o.path)
        common = {"trust_remote_code": False, "use_safetensors": True, "dtype": dtype}
        self._tokenizer: Any = AutoTokenizer.from_pretrained(o.path, trust_remote_code=False)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._tokenizer.truncation_side = "left"
        self._tokenizer.padding_side = "right"
        self._head: tuple[Any, Any] | None = None
        if own.is_file():
            from safetensors.torch import load_file

            head = load_file(str(own))
            self._model: Any = AutoModel.from_pretrained(base, **common)
            weight, bias = head["linear.weight"][0].float(), head["linear.bias"].float()
            self._head = (weight.to(o.device), bias.to(o.device))
        else:
            self._model = AutoModelForSequenceClassification.from_pretrained(base, **common)
            if self._model.config.pad_token_id is None:
                self._model.config.pad_token_id = self._tokenizer.pad_token_id
        if adapter:
            self._model = _merged(self._model, o.path)
        self._model = self._model.to(o.device).eval()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """A number for each sample; batches are sorted by length and padded."""
        import torch

        o = self.options
        texts = [self._text(sample) for sample in samples]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        scores = [0.0] * len(texts)
        with torch.no_grad():
            for start in range(0, len(order), o.batch):
                chosen = order[start : start + o.batch]
                for i, score in zip(chosen, self._scores([texts[i] for i in chosen]), strict=True):
                    scores[i] = (score - o.mean) / o.std
        return scores

    def _text(self, sample: Sample) -> str:
        if self.options.chat:
            messages = [
                {"role": "user", "content": sample.prompt},
                {"role": "assistant", "content": sample.response},
            ]
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        return self.options.template.format(prompt=sample.prompt, response=sample.response)

    def _scores(self, texts: list[str]) -> list[float]:
        import torch

        o = self.options
        inputs = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=o.max_tokens,
            # The text of a trained scorer holds no further special tokens.
            add_special_tokens=self._head is None,
        ).to(o.device)
        inputs.pop("token_type_ids", None)
        if self._head is not None:
            hidden = self._model(**inputs, use_cache=False).last_hidden_state
            last = inputs["attention_mask"].sum(-1) - 1
            state = hidden[torch.arange(len(texts)), last].float()
            found = state @ self._head[0] + self._head[1]
        else:
            logits = self._model(**inputs).logits.float()
            if o.output == "softmax":
                return [float(x) for x in torch.softmax(logits, -1)[:, o.label]]
            found = logits[:, o.label]
        found = torch.sigmoid(found) if o.output != "logit" else found
        return [float(x) for x in found]


def _adapter(path: str) -> tuple[str, bool]:
    """(the base model's path, whether ``path`` is an adapter of peft)."""
    import json

    config = Path(path) / "adapter_config.json"
    if not config.is_file():
        return path, False
    return str(json.loads(config.read_text())["base_model_name_or_path"]), True


def _merged(model: Any, path: str) -> Any:  # noqa: ANN401 - models of transformers and peft
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ValueError(f"{path} is an adapter, which needs the package peft: {error}") from error
    return PeftModel.from_pretrained(model, path).merge_and_unload()
