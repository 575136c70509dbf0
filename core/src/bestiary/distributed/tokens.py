"""The environment variables by which a job's processes are recognised."""

import os
import secrets
import tempfile
from pathlib import Path

JOB_VARIABLE = "BESTIARY_JOB"
"""Carried by every process of a job: driver, raylet, workers, and whatever they start."""
CLUSTER_VARIABLE = "BESTIARY_CLUSTER"
"""Carried by every process of a cluster that several jobs share, and by those jobs."""
GROUP_VARIABLE = "BESTIARY_GROUP"
"""Carried by every process of a worker group."""
TEMP_VARIABLE = "BESTIARY_TEMP"
"""Folder of a job for sockets and the like; removed with the job."""
ADDRESS_VARIABLE = "BESTIARY_RAY_ADDRESS"
"""Cluster that a job joins instead of starting its own."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place of shared memory, not a temporary file

_SOCKET_ROOM = 40
"""Longest path that leaves room for the names of sockets, which may have 107 characters in all."""


def new_token() -> str:
    """A random name for a job, cluster or group."""
    return secrets.token_hex(6)


def temp_dir(token: str) -> Path:
    """The folder of a job: short enough for sockets."""
    root = tempfile.gettempdir()
    if len(root) > _SOCKET_ROOM - len("/bst-") - len(token):
        root = "/tmp"  # noqa: S108 - the folder gets a random name and is private
    return Path(root) / f"bst-{token}"


def segment_name(purpose: str) -> str:
    """A name for a segment in shared memory that is removed with the job whatever happens."""
    token = os.environ.get(JOB_VARIABLE, "nojob")
    return f"bst-{token}-{purpose}-{secrets.token_hex(4)}"
