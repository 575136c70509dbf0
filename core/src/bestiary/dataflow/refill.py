"""Collect whole groups until the sampler has accepted as many as were asked for."""

from bestiary.batch import Batch
from bestiary.errors import AlgorithmError, RewardError
from bestiary.protocols import Algorithm, Sampler
from bestiary.roles.score import ScoreRole

MAX_REFILLS = 16
"""Rounds of refilling after which a sampler that rejects everything is an error."""


def collect_groups(algorithm: Algorithm, sampler: Sampler, prompts: int) -> Batch:
    """Draw, collect, and refill what the sampler rejects.

    Args:
        algorithm: its ``collect`` makes the groups.
        sampler: draws prompts and accepts groups.
        prompts: groups wanted.

    Returns:
        The accepted groups. When the last rounds still reject some, the groups that there are.

    Raises:
        AlgorithmError: if no group at all was accepted after the last round.
        RewardError: if no sample that could be trained on is valid: there is nothing to learn.
    """
    kept: list[Batch] = []
    wanted = prompts
    for _ in range(MAX_REFILLS + 1):
        batch = algorithm.collect(sampler.draw(wanted))
        accepted, more = sampler.accept(batch)
        if len(accepted):
            kept.append(accepted)
        if more <= 0:
            break
        wanted = more
    if not kept:
        raise AlgorithmError(
            f"the sampler rejected every group in {MAX_REFILLS + 1} rounds of {prompts} prompts",
            hint="the task may be all too easy or too hard; use sampler=uniform, or look at "
            "reward/mean and groups/zero_variance of an earlier run",
        )
    batch = kept[0] if len(kept) == 1 else Batch.concat(kept)
    check_valid(algorithm, batch)
    return batch


def check_valid(algorithm: Algorithm, batch: Batch) -> None:
    """Refuse a batch that teaches nothing because every score was None or NaN.

    Raises:
        RewardError: naming the scorers that the algorithm has.
    """
    if "valid" not in batch:
        return
    rows = batch.trainable()
    if not len(rows) or rows["valid"].any():
        return
    scorers = [h.described() for h in vars(algorithm).values() if isinstance(h, ScoreRole)]
    raise RewardError(
        f"step {algorithm.step}: none of the {len(rows)} samples has a valid score: "
        f"{' and '.join(scorers) or 'the algorithm'} gave None or NaN for each",
        hint="return a number where a sample can be scored; call the function on a line of "
        "RUN/samples to see why it does not",
    )
