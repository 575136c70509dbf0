"""Programs for the test of a sweep.

python sweep_job.py sweep FOLDER       # the launcher: one cluster, 3 jobs, job 2 fails
python sweep_job.py job FOLDER NUMBER  # a job
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def sweep(folder):
    from bestiary.distributed import reaper
    from bestiary.distributed.cluster import leftovers, start_cluster, stop_cluster
    from bestiary.distributed.guard import run_guarded
    from bestiary.distributed.shared_cluster import shared_cluster
    from bestiary.distributed.tokens import CLUSTER_VARIABLE, JOB_VARIABLE, new_token

    seen = []
    with shared_cluster(num_cpus=1) as cluster:
        os.environ.update(cluster.env)
        observer = start_cluster()
        for number in (1, 2, 3):
            argv = [sys.executable, __file__, "job", str(folder), str(number)]
            token = new_token()
            status = run_guarded(argv, {**os.environ, **cluster.env}, token)
            processes = [p.pid for p in reaper.marked(JOB_VARIABLE, token)]
            deadline = time.monotonic() + 5
            while leftovers() and time.monotonic() < deadline:
                time.sleep(0.05)
            seen.append({"status": status, "left": leftovers(), "processes": processes})
        stop_cluster()
        alive = len(reaper.marked(CLUSTER_VARIABLE, cluster.token))
    left = [p.name() for p in reaper.marked(CLUSTER_VARIABLE, cluster.token)]
    record = {"jobs": seen, "cluster alive": alive, "left": left, "local": observer.local}
    (folder / "seen").write_text(json.dumps(record))


def job(folder, number):
    from bestiary.distributed.cluster import start_cluster
    from bestiary.distributed.pools import ResourcePool
    from bestiary.distributed.worker_group import WorkerGroup

    cluster = start_cluster()
    assert not cluster.local
    pool = ResourcePool(devices=["cpu:0"], timeout_s=10)  # the whole cluster
    env = {"PYTHONPATH": str(FOLDER)}
    group = WorkerGroup("same", pool, "fake_workers:Arithmetic", None, log_dir=folder, env=env)
    (folder / f"token{number}").write_text(json.dumps(group.run("environment", "BESTIARY_JOB")))
    if number == 2:
        group.run("step", 3, 0, "raise")
    group.close()


if __name__ == "__main__":
    if sys.argv[1] == "sweep":
        sweep(Path(sys.argv[2]))
    else:
        job(Path(sys.argv[2]), int(sys.argv[3]))
