"""What one controller costs: a whole step of PPO and GRPO on workers that only answer.

Every worker has the same number of rows (weak scaling), so the work of the controller should grow
linearly with the workers. Prints seconds, calls and bytes of a step for each size, and a line
fitted through them.

    python benchmarks/controller.py
    python benchmarks/controller.py --workers 8 64 1024 --rows 64
"""

import argparse
import json
import time
from statistics import median

import numpy as np
from common import machine, say
from simulated import SimulatedGroup, prompts

from bestiary.config.compose import compose_run
from bestiary.plugins.manager import load_plugins
from bestiary.roles.advantage import AdvantageRole
from bestiary.roles.model import Model
from bestiary.roles.policy import PolicyRole
from bestiary.roles.score import ScoreRole
from bestiary.roles.services import Services
from bestiary.roles.value import ValueRole
from bestiary.runtime.components import Components


def algorithm(name: str, group: SimulatedGroup, samples: int):
    """The algorithm of a name with handles on simulated workers."""
    words = [f"algorithm={name}", "task=addition", "model=tiny", "algorithm.max_tokens=64"]
    words += [f"algorithm.samples={samples}"]
    plugins = load_plugins()
    plan = compose_run(words, None, plugins)
    components = Components(plugins)
    services = Services(0, components.options)
    made = components.build(plan.reference("algorithm"), 0)
    model = {n: Model(n, group, 1 << 16) for n in ("actor", "reference", "critic")}
    for role in plan.roles:
        if role.kind == "score":
            handle = ScoreRole(role.name, group, services)
        else:
            kind = ValueRole if role.kind == "value" else PolicyRole
            handle = kind(role.name, model[role.name], services, frozen=role.frozen)
        setattr(made, role.name, handle)
    ref = plan.reference("advantage")
    made.advantage = AdvantageRole(
        ref, components.build(ref), components.options(ref), group, services
    )
    made.loss, made.reads, made.metrics = plan.reference("loss"), plan.reads, services.ledger.drain
    made.sampling = tuple(plan.samplings)
    return made


def step(name: str, workers: int, rows: int, samples: int, repeats: int) -> dict:
    seconds, group = [], None
    drawn = prompts(workers * rows // samples)
    for number in range(repeats + 1):
        group = SimulatedGroup(workers)
        runs = algorithm(name, group, samples)
        runs.step = number + 1
        began = time.perf_counter()
        runs.learn(runs.collect(drawn))
        seconds.append(time.perf_counter() - began)
    return {"workers": workers, "rows": workers * rows, "seconds": median(seconds[1:]),
            "calls": group.calls, "sent_bytes": group.sent,
            "received_bytes": group.received}  # fmt: skip


def fitted(found: list[dict]) -> dict:
    """Seconds = fixed + each · workers, by least squares, and how far the line misses."""
    x = np.array([f["workers"] for f in found], dtype=float)
    y = np.array([f["seconds"] for f in found])
    each, fixed = np.polyfit(x, y, 1)
    off = np.abs(np.polyval([each, fixed], x) - y) / y
    last = np.log(y[-1] / y[-2]) / np.log(x[-1] / x[-2])
    return {"fixed_s": round(float(fixed), 5), "s_per_worker": float(f"{each:.3g}"),
            "exponent_at_the_end": round(float(last), 2),
            "largest_miss_of_last_two": round(float(off[-2:].max()), 3)}  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256, 512, 1024])
    p.add_argument("--rows", type=int, default=32, help="rows of each worker")
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--repeats", type=int, default=3)
    a = p.parse_args()
    out = {"machine": machine(), "settings": vars(a)}
    for name in ("grpo", "ppo"):
        found = []
        for workers in a.workers:
            found.append(step(name, workers, a.rows, a.samples, a.repeats))
            say(f"{name} {workers} workers: {found[-1]['seconds']:.4f} s")
        out[name] = {"steps": found, "line": fitted(found)}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
