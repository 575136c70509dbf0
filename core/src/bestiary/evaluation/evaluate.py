"""Sampled and greedy accuracy on held-out problems."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bestiary.batch import Batch
from bestiary.protocols import PolicyHandle, Sampling, ScoreHandle

CORRECT = 1.0
"""A reward from which a response counts as an exact match."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found.

    Args:
        metrics: ``eval/…`` by name.
        answers: a few problems with their first sampled and greedy responses.
    """

    metrics: dict[str, float]
    answers: list[dict[str, Any]]


def eval_samplings(base: Sampling, samples: int, *, greedy: bool) -> tuple[Sampling, ...]:
    """Temperature 1 without truncation, ``samples`` times, and the greedy response beside it."""
    plain = replace(
        base,
        n=max(1, samples),
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        greedy=False,
        tag="sample",
        trainable=False,
    )
    sampled = (plain,) if samples else ()
    return (*sampled, replace(plain, n=1, greedy=True, tag="greedy")) if greedy else sampled


def evaluate(
    actor: PolicyHandle,
    reward: ScoreHandle,
    prompts: Batch,
    samplings: tuple[Sampling, ...],
    *,
    others: Mapping[str, ScoreHandle] | None = None,
    show: int = 8,
) -> Evaluation:
    """Generate for every prompt in one engine call, score, and average.

    ``eval/exact_match`` is the share of sampled responses with a reward of 1 or more (the mean
    over problems of the mean over samples, which is the same since each has as many), and
    ``eval/greedy`` that of the greedy ones; ``eval/pass_at_k`` is the share of problems of which
    any sampled response is right. Invalid samples are left out.

    Args:
        actor: draws the responses.
        reward: scores them.
        prompts: held-out problems.
        samplings: from :func:`eval_samplings`.
        others: further scorers by name: ``eval/<name>`` is the mean of theirs.
        show: number of problems in ``answers``.
    """
    batch = actor.generate(prompts, samplings)
    scored = [reward.score(batch), *(other.score(batch) for other in (others or {}).values())]
    batch = batch.join(*scored)
    rewards, valid, tag = batch["reward"], batch["valid"].astype(bool), batch["tag"]
    metrics: dict[str, float] = {}
    for name, key in (("sample", "eval/exact_match"), ("greedy", "eval/greedy")):
        mine = (tag == name) & valid
        if (tag == name).any():
            metrics[key] = float((rewards[mine] >= CORRECT).mean()) if mine.any() else float("nan")
    drawn = (tag == "sample") & valid
    if drawn.any():
        right = np.bincount(batch.group_index(), weights=drawn & (rewards >= CORRECT))
        judged = np.bincount(batch.group_index(), weights=drawn) > 0
        metrics["eval/pass_at_k"] = float((right[judged] > 0).mean())
    sampled = tag == "sample" if (tag == "sample").any() else np.ones(len(tag), dtype=bool)
    metrics["eval/reward"] = _mean(rewards[sampled & valid])
    for name in others or ():
        fine = batch[f"valid_{name}"].astype(bool)
        metrics[f"eval/{name}"] = _mean(batch[name][sampled & fine])
    metrics["eval/response_len"] = _mean(batch["response_len"][sampled])
    metrics["eval/truncated"] = _mean(batch["truncated"][sampled])
    group = batch.group_index()
    chosen = batch.take(np.flatnonzero((group < show) & (batch["sample_index"] == 0)))
    return Evaluation(metrics, _answers(chosen, reward.texts(chosen)))


def _mean(x: np.ndarray) -> float:
    return float(x.mean()) if len(x) else float("nan")


def _answers(rows: Batch, texts: list[str]) -> list[dict[str, Any]]:
    """What a person wants to see of each row."""
    names = ("uid", "prompt", "answer", "tag", "reward", "response_len", "truncated")
    columns = {name: rows[name] for name in names}
    return [
        {"response": texts[i], **{name: _plain(column[i]) for name, column in columns.items()}}
        for i in range(len(rows))
    ]


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value
