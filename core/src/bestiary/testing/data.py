"""Rows, groups, prompts and a tiny model for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.batch import Batch, Rows, row_key

if TYPE_CHECKING:
    from torch import Tensor

    from bestiary.data.source import PromptSource


def example_rows(
    seed: int = 0, groups: Sequence[int] = (4, 3, 1, 4), width: int = 6, *, invalid: bool = True
) -> Rows:
    """Rows of several groups with every column of DESIGN that an estimator or a loss may read.

    Args:
        seed: of all values.
        groups: rows of each group.
        width: longest response; every row has at least one token.
        invalid: the second row has no reward.

    Returns:
        Float64 columns on rows of different lengths; text columns ``parts``.
    """
    import torch

    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(groups)), groups)
    n = len(group)
    lengths = rng.integers(1, width + 1, n)
    mask = torch.from_numpy(np.arange(width)[None] < lengths[:, None])

    def tokens(scale: float = 1.0) -> "Tensor":
        return torch.from_numpy(rng.normal(size=(n, width)) * scale)

    def column(values: Any) -> "Tensor":  # noqa: ANN401 - any array
        return torch.from_numpy(np.asarray(values))

    now = -tokens().abs() - 0.01
    columns = {
        "reward": column(rng.integers(0, 3, n) / 2.0),
        "cost": column(rng.integers(0, 3, n) / 2.0),
        "baseline_reward": column((rng.integers(0, 3, len(groups)) / 2.0)[group]),
        "group": column(group),
        "valid": column(np.ones(n, dtype=bool)),
        "response_len": column(lengths),
        "prompt_len": column(rng.integers(1, 9, n)),
        "truncated": column(rng.random(n) < 0.4),
        "row_key": column(np.array([row_key(i) for i in range(n)], dtype=np.uint64)),
        "sample_index": column(np.concatenate([np.arange(g) for g in groups])),
        "preferred": column(np.concatenate([np.arange(g) % 2 == 0 for g in groups]).astype(float)),
        "unsafe": column(rng.choice([-1.0, 1.0], n)),
        "advantages": tokens(),
        "returns": tokens(),
        "values": tokens(),
        "cost_values": tokens(),
        "values_after": column(rng.normal(size=n)),
        "cost_values_after": column(rng.normal(size=n)),
        "old_logprobs": now + tokens(0.3),
        "rollout_logprobs": now + tokens(0.3),
        "rollout_logprobs_full": now + tokens(0.3),
        "ref_logprobs": now + tokens(0.3),
        "teacher_logprobs": now + tokens(0.3),
        "probs_squared": tokens().abs().clamp(max=1.0),
        "token_rewards": tokens(0.2),
        "token_versions": column(rng.integers(0, 3, (n, width))),
        "turn_ids": column(np.zeros((n, width), dtype=np.int64)),
        "now": now,
    }
    if invalid and n > 1:
        columns["valid"][1] = False
        columns["reward"][1] = 0.0
    parts = [{"style": float(rng.integers(0, 3)), "truth": float(rng.normal())} for _ in range(n)]
    return Rows(columns, mask, {"parts": parts})


def example_groups(
    prompts: Batch, samples: int = 4, seed: int = 0, rewards: Sequence[float] = (0.0, 0.5, 1.0)
) -> Batch:
    """What ``collect`` could have made of some prompts: ``samples`` scored rows for each."""
    rng = np.random.default_rng(seed)
    rows = prompts.take(np.repeat(np.arange(len(prompts)), samples))
    n = len(rows)
    index = np.tile(np.arange(samples), len(prompts))
    keys = [row_key(g, "sample", i) for g, i in zip(rows["group_uid"], index, strict=True)]
    every = np.ones(n, dtype=bool)
    return rows.with_columns(
        row_key=np.array(keys, dtype=np.uint64),
        sample_index=index,
        tag=["sample"] * n,
        trainable=every,
        valid=every,
        reward=rng.choice(np.asarray(rewards), n),
        response_len=rng.integers(1, 9, n),
        truncated=~every,
    )


class _Letters:
    """A tokenizer with one token a character."""

    def render(self, prompt: Any, chat_template: str = "auto") -> str:  # noqa: ANN401 - as there
        return str(prompt)

    def encode_prompt(self, prompt: Any, chat_template: str = "auto") -> list[int]:  # noqa: ANN401
        return [ord(c) for c in str(prompt)]

    def encode_target(self, text: str) -> list[int]:
        return [ord(c) for c in text]


def fake_prompts(n: int = 20, seed: int = 0) -> "PromptSource":
    """A source of ``n`` prompts without a model."""
    from bestiary.data.source import PromptSource
    from bestiary.protocols import Problem

    problems = [Problem(uid=f"u{i}", prompt=f"question {i}", answer=str(i)) for i in range(n)]
    return PromptSource(problems, _Letters(), seed=seed)


def tiny_model(folder: str | Path, *, hidden: int = 32, layers: int = 2, seed: int = 0) -> Path:
    """A tiny llama with bytes as tokens in ``folder``, for engines and algorithms."""
    from bestiary.models.tiny import TinyOptions, build_tiny

    folder = Path(folder)
    build_tiny(folder, TinyOptions(hidden=hidden, layers=layers, heads=2, seed=seed))
    return folder
