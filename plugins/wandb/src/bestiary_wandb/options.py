"""Options of the tracker ``wandb``; light, imports no wandb."""

from dataclasses import dataclass
from typing import Literal, get_args

WandbMode = Literal["auto", "online", "offline", "disabled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbOptions:
    """Where the run goes and what of it is sent."""

    project: str = "bestiary"
    """Project that the run goes to."""
    entity: str = ""
    """Team or user; empty is the account's default."""
    group: str = ""
    """Puts runs together, as the seeds of one experiment."""
    tags: tuple[str, ...] = ()
    """Labels."""
    mode: WandbMode = "auto"
    """``auto`` is online when a key is known, else offline; a key is never asked for."""
    system_stats: bool = False
    """Also record CPU, memory and device use; it starts a further process while the run lasts."""
    upload_wait_s: float = 120.0
    """Seconds that the end of the run waits for the upload; what is left can be synced later."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(WandbMode):
            raise ValueError(
                f"wandb mode={self.mode!r}: one of {', '.join(get_args(WandbMode))} is wanted"
            )
        if not self.upload_wait_s > 0.0:
            raise ValueError(f"wandb upload_wait_s={self.upload_wait_s}: must be above 0 seconds")
        if not self.project:
            raise ValueError("wandb project is empty: a name is needed")
