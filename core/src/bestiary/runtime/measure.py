"""What a finished step says about itself: numbers from its sample table."""

from collections.abc import Mapping

import numpy as np

from bestiary.batch import Batch

PHASES = ("rollout", "score", "update", "sync")


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Rewards, lengths and groups of the rows that were trained on.

    Rewards of invalid samples stay out of the statistics.
    """
    rows = batch.trainable()
    out = {
        "response_len/mean": float(rows["response_len"].mean()),
        "response_len/max": float(rows["response_len"].max()),
    }
    if "truncated" in rows:
        out["truncated/fraction"] = float(rows["truncated"].mean())
    if "reward" in rows:
        valid = rows["valid"].astype(bool)
        rewards = rows["reward"][valid]
        out["valid/fraction"] = float(valid.mean())
        out["reward/mean"] = float(rewards.mean()) if len(rewards) else float("nan")
        out["reward/std"] = float(rewards.std()) if len(rewards) else float("nan")
        out["groups/zero_variance"] = _equal_groups(rows, valid)
    return out


def _equal_groups(rows: Batch, valid: np.ndarray) -> float:
    group, reward = rows.group_index()[valid], rows["reward"][valid]
    count = int(rows.group_index().max()) + 1
    high, low = np.full(count, -np.inf), np.full(count, np.inf)
    np.maximum.at(high, group, reward)
    np.minimum.at(low, group, reward)
    return float((high <= low).mean())


def tokens_of(batch: Batch) -> tuple[int, int]:
    """(prompt + response tokens, response tokens) over all rows, baseline rows included."""
    response = int(batch["response_len"].sum())
    return int(batch["prompt_len"].sum()) + response, response


def staleness(batch: Batch, version: int) -> float:
    """Trainer version minus the oldest version that drew a token of the batch."""
    return float(version - batch["version_min"].min()) if "version_min" in batch else 0.0


def other_time(metrics: Mapping[str, float], step_s: float) -> float:
    """Seconds of a step that no phase accounts for."""
    return max(0.0, step_s - sum(metrics.get(f"time/{phase}_s", 0.0) for phase in PHASES))
