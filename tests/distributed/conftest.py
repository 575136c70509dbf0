"""Worker groups on the module's cluster."""

import itertools
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))


@pytest.fixture
def make_group(cluster, tmp_path):
    """Worker groups that are closed after the test."""
    from bestiary.distributed.pools import ResourcePool
    from bestiary.distributed.supervisor import set_context
    from bestiary.distributed.worker_group import WorkerGroup

    made = []
    names = (f"group{i}" for i in itertools.count())

    def make(worker="Arithmetic", size=2, args=None, **options):
        pool = ResourcePool(devices=[f"cpu:{i}" for i in range(size)], name="pool")
        options.setdefault("env", {"PYTHONPATH": str(FOLDER)})
        group = WorkerGroup(
            next(names), pool, f"fake_workers:{worker}", args, log_dir=tmp_path, **options
        )
        made.append(group)
        return group

    yield make
    set_context()
    for group in made:
        group.close()
