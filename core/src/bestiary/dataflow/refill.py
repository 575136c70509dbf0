"""Collect whole groups until the sampler has accepted as many as were asked for."""

from bestiary.batch import Batch
from bestiary.errors import AlgorithmError
from bestiary.protocols import Algorithm, Sampler

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
    return kept[0] if len(kept) == 1 else Batch.concat(kept)
