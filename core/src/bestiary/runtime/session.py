"""A session: everything that a run or an evaluation needs, started and closed together."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestiary.config.plan import RunPlan
from bestiary.distributed.cluster import start_cluster, stop_cluster
from bestiary.distributed.inprocess import InProcessGroup
from bestiary.distributed.placement import PlacementRequest, PoolDemand, plan_placement
from bestiary.distributed.worker_group import WorkerGroup
from bestiary.errors import Owner
from bestiary.models.resolve import resolve_model
from bestiary.plugins.manager import PluginSet
from bestiary.protocols import Algorithm, ComponentRef, Sampling
from bestiary.rewards.worker import RewardArgs
from bestiary.roles.advantage import AdvantageRole
from bestiary.roles.model import Group, Model
from bestiary.roles.services import Services
from bestiary.runtime.components import Components
from bestiary.runtime.prompts import Prompts, load_prompts, with_task_limits
from bestiary.runtime.roles import Handle, ModelSource, make_handles, model_plans
from bestiary.runtime.worker import WorkerPlan

MODEL_WORKER = "bestiary.runtime.worker:ModelWorker"
REWARD_WORKER = "bestiary.rewards.worker:RewardWorker"


@dataclass(slots=True)
class Session:
    """What a run is made of, after all processes have started."""

    plan: RunPlan
    run_dir: Path
    components: Components
    prompts: Prompts
    algorithm: Algorithm
    sampler: Any
    models: Mapping[str, Model]
    handles: Mapping[str, Handle]
    services: Services
    samplings: tuple[Sampling, ...]
    groups: tuple[Group, ...]
