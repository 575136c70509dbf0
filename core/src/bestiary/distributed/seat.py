"""Where a rank sits, and which accelerator it may see."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one process in its worker group.

    Args:
        rank: 0 … world − 1, in the order of the pool's devices.
        world: processes in the group.
        device: ``cpu``, or ``cuda:0``: the one accelerator that the process can see.
        group: name of the worker group.
        host: name of the machine.
        pid: of the process.
        log_path: file that holds everything that the process printed; None in-process.
    """

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    group: str = "local"
    host: str = ""
    pid: int = 0
    log_path: Path | None = None


def visible_devices(assigned: Sequence[int | str], env: Mapping[str, str]) -> tuple[str, int]:
    """What a worker must set as visible devices, and the index of its device under it.

    Some launchers narrow the visible devices to the assigned ones and some do not; then every
    worker would take device 0. The answer is the same in both cases, so workers always apply it.

    Args:
        assigned: ids that the scheduler gave to this worker, as in ``[3]``.
        env: the worker's environment; its present visible list is not trusted.

    Returns:
        (value of ``CUDA_VISIBLE_DEVICES``, local index): the assigned ids and 0, or an empty
        string and −1 where no accelerator is assigned.

    Raises:
        ValueError: if an assigned id is outside the list that was visible before.
    """
    ids = [str(device) for device in assigned]
    if not ids:
        return "", -1
    seen = [part.strip() for part in env.get(VISIBLE, "").split(",") if part.strip()]
    unknown = [device for device in ids if seen and device not in seen]
    if unknown:
        raise ValueError(
            f"assigned devices {unknown} are not among the visible ones {seen}: "
            f"{VISIBLE} was changed after the cluster had started"
        )
    return ",".join(ids), 0


def apply_visible_devices(assigned: Sequence[int | str]) -> str:
    """Narrow this process to its assigned devices; returns its torch device name."""
    value, index = visible_devices(assigned, os.environ)
    os.environ[VISIBLE] = value
    return "cpu" if index < 0 else f"cuda:{index}"
