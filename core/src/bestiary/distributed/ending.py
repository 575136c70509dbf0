"""Ending the processes of a worker group, with everything that they started."""

from collections.abc import Sequence
from typing import Any

from bestiary.distributed.rank import Home
from bestiary.distributed.reaper import end_marked
from bestiary.distributed.tokens import GROUP_VARIABLE


def end_ranks(actors: Sequence[Any], homes: Sequence[Home], token: str, polite_s: float) -> None:
    """End the actors of a group.

    Args:
        actors: handles of the ranks.
        homes: where they are.
        token: what the processes of the group carry in their environment.
        polite_s: seconds in which workers may clean up and leave their process group; 0 for none.
    """
    import ray

    if not ray.is_initialized():
        return
    if polite_s > 0:
        ray.wait(
            [actor.close.remote() for actor in actors], num_returns=len(actors), timeout=polite_s
        )
    for actor in actors:
        ray.kill(actor, no_restart=True)
    # Children of a worker (engine servers, reward processes) outlive it; on this machine they are
    # found by the token. On other machines, Ray ends them with their parent.
    if homes or actors:
        end_marked(GROUP_VARIABLE, token, grace_s=1.0)
