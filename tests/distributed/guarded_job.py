"""Programs for the tests of the guard.

python guarded_job.py launch FOLDER HOW    # the launcher: runs ``job`` under guard
python guarded_job.py job FOLDER HOW       # the job: a cluster, 3 workers, 3 grandchildren
"""

import json
import os
import socket
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

FOLDER = Path(__file__).parent


def launch(folder, how):
    from bestiary.distributed.guard import run_guarded

    argv = [sys.executable, __file__, "job", str(folder), how]
    status = run_guarded(argv, token=folder.name)
    (folder / "status").write_text(str(status))
    return status


def job(folder, how):
    from bestiary.distributed.cluster import start_cluster, stop_cluster
    from bestiary.distributed.pools import ResourcePool
    from bestiary.distributed.tokens import segment_name
    from bestiary.distributed.worker_group import WorkerGroup

    cluster = start_cluster(num_cpus=3)
    pool = ResourcePool(devices=["cpu:0", "cpu:1", "cpu:2"])
    env = {"PYTHONPATH": str(FOLDER)}
    group = WorkerGroup("g", pool, "fake_workers:Arithmetic", None, log_dir=folder, env=env)
    grandchildren = group.run("child")
    listener = socket.create_server(("127.0.0.1", 0))
    named = SharedMemory(name=segment_name("test"), create=True, size=1 << 16)
    mapped = SharedMemory(create=True, size=1 << 16)
    record = {
        "driver": os.getpid(),
        "workers": [home.pid for home in group.homes],
        "grandchildren": grandchildren,
        "ports": [listener.getsockname()[1], int(cluster.address.rpartition(":")[2])],
        "segments": [named._name, mapped._name],
        "temp": os.environ["BESTIARY_TEMP"],
    }
    (folder / "ready.part").write_text(json.dumps(record))
    (folder / "ready.part").rename(folder / "ready")
    if how == "exception":
        while not (folder / "go").exists():
            time.sleep(0.05)
        raise RuntimeError("the driver fails")
    try:
        group.run("sleep", 600)
    finally:
        group.close()
        stop_cluster()


if __name__ == "__main__":
    sys.exit({"launch": launch, "job": job}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]))
