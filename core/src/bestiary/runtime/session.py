"""A session: the processes, models and handles of a run, started and closed together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bestiary.config.plan import RunPlan
from bestiary.distributed.placement import (
    Placement,
    PlacementRequest,
    PoolPlan,
    check_models,
    regrouped,
)
from bestiary.errors import ConfigError, DataError, PlacementError, boundary
from bestiary.models.resolve import resolve_model
from bestiary.plugins.events import PlacementRequest as HookRequest
from bestiary.plugins.manager import PluginSet
from bestiary.protocols import Algorithm, ComponentRef, Role, Sampler, Sampling
from bestiary.rewards.loading import reward_ref
from bestiary.rewards.worker import RewardArgs
from bestiary.roles.advantage import AdvantageRole, Part, Selection
from bestiary.roles.model import Group, Model
from bestiary.roles.services import Services
from bestiary.runtime.components import Components
from bestiary.runtime.feeds import TargetFeed
from bestiary.runtime.groups import Hosts, open_hosts
from bestiary.runtime.prompts import Prompts, load_prompts, with_task_limits
from bestiary.runtime.roles import (
    Handle,
    ModelSource,
    Scorer,
    make_handles,
    model_plans,
    on_models,
)
from bestiary.runtime.worker import ModelPlan, WorkerPlan

MODEL_WORKER = "bestiary.runtime.worker:ModelWorker"
REWARD_WORKER = "bestiary.rewards.worker:RewardWorker"

Say = Callable[[str], None]


@dataclass(slots=True)
class Session:
    """What a run is made of, after all processes have started."""

    plan: RunPlan
    run_dir: Path
    components: Components
    prompts: Prompts
    algorithm: Algorithm
    sampler: Sampler
    models: Mapping[str, Model]
    model_plans: Mapping[str, ModelPlan]
    handles: Mapping[str, Handle]
    services: Services
    samplings: tuple[Sampling, ...]
    groups: tuple[Group, ...]
    primary: str
    """The model that is trained first of all: the one that is exported."""

    def trainable(self, name: str) -> bool:
        """Whether a model is trained, and so has state."""
        return self.model_plans[name].spec.trainable

    def state_dict(self) -> dict[str, Any]:
        """Everything with state outside the models, as JSON values."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "sampler": self.sampler.state_dict(),
            "source": self.prompts.train.state_dict(),
            "data": {name: feed.state_dict() for name, feed in self.feeds.items()},
        }

    @property
    def feeds(self) -> Mapping[str, TargetFeed]:
        """The supervised data that the algorithm asked for."""
        return cast("Mapping[str, TargetFeed]", self.algorithm.data)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.sampler.load_state_dict(state["sampler"])
        self.prompts.train.load_state_dict(state["source"])
        for name, feed in self.feeds.items():
            feed.load_state_dict(state["data"][name])


@contextmanager
def open_session(
    plan: RunPlan, plugins: PluginSet, run_dir: Path, say: Say = lambda text: None
) -> Iterator[Session]:
    """Start everything that a plan needs; close it all on the way out, whatever happened.

    Args:
        plan: the checked configuration.
        plugins: of this process.
        run_dir: for logs.
        say: told what is being waited for.
    """
    components = Components(plugins)
    say("preparing the model")
    folder = resolve_model(plan.model.source(), revision=plan.model.revision)
    say("reading the task")
    prompts = _prompts(plan, components, folder)
    _check_targets(plan, prompts)
    with ExitStack() as stack:
        say("starting workers")
        hosts = stack.enter_context(open_hosts(plan, run_dir, plugins, say))
        yield _assemble(plan, components, run_dir, folder, prompts, hosts)


def _prompts(plan: RunPlan, components: Components, folder: Path) -> Prompts:
    ref = plan.reference("task")
    return load_prompts(
        components.build(ref),
        components.owner(ref),
        folder,
        plan.model,
        seed=plan.run.seed,
        eval_problems=plan.run.eval.problems,
    )


def _check_targets(plan: RunPlan, prompts: Prompts) -> None:
    """Refuse a task whose problems lack what the algorithm learns from."""
    wants = plan.algorithm.trains_from
    if (wants == "targets" and not prompts.train.has_targets) or (
        wants == "pairs" and not prompts.train.has_pairs
    ):
        what = "a target" if wants == "targets" else "a target and a rejected text"
        raise DataError(
            f"algorithm={plan.choices['algorithm']} learns from {wants}, and the problems of "
            f"task={plan.choices['task']} do not have {what}",
            hint="choose another task; for files: task=jsonl task.target=COLUMN"
            + (" task.rejected=COLUMN" if wants == "pairs" else ""),
        )


def _assemble(
    plan: RunPlan,
    components: Components,
    run_dir: Path,
    folder: Path,
    prompts: Prompts,
    hosts: Hosts,
) -> Session:
    services = Services(plan.run.seed, components.options)
    rollout, train = plan.reference("rollout_engine"), plan.reference("train_engine")
    paths = {r.path: str(resolve_model(r.path)) for r in plan.roles if r.path}
    draws, residency = _deterministic(plan, rollout), plan.run.residency
    source = ModelSource(str(folder), plan.model.dtype, train, draws, paths, residency)
    roles = on_models(plan.roles, lora=source.lora)
    plans = model_plans(roles, source)
    feeds = load_feeds(plan, components, prompts)
    placement = _placement(plan, components, roles)
    models, scorers = _start(plan, components, folder, roles, placement, plans, hosts)
    samplings = with_task_limits(
        plan.samplings, prompts.task, getattr(plan.algorithm, "max_tokens", None)
    ) or with_task_limits((Sampling(),), prompts.task, None)
    temperature = samplings[0].temperature
    handles = make_handles(roles, models, scorers, services, temperature)
    primary = next(role.model for role in roles if role.kind != "score" and not role.frozen)
    algorithm = _algorithm(plan, components, services, models[primary].group, handles)
    algorithm.sampling = samplings
    algorithm.data = feeds
    algorithm.prompts_from = prompts.reader.prompts_from
    ref = plan.reference("sampler")
    sampler = components.build(ref, prompts.train)
    return Session(
        plan=plan,
        run_dir=run_dir,
        components=components,
        prompts=prompts,
        algorithm=algorithm,
        sampler=sampler,
        models=models,
        model_plans=plans,
        handles=handles,
        services=services,
        samplings=samplings,
        groups=tuple(hosts.groups),
        primary=primary,
    )


def _deterministic(plan: RunPlan, rollout: ComponentRef) -> ComponentRef:
    """Pass ``deterministic`` on to a rollout engine that has such an option."""
    if plan.run.deterministic and "deterministic" in rollout.options:
        return ComponentRef(rollout.kind, rollout.name, {**rollout.options, "deterministic": True})
    return rollout


def _placement(plan: RunPlan, components: Components, roles: Sequence[Role]) -> Placement:
    ref = plan.reference("placement")
    request = PlacementRequest(tuple(roles))
    with boundary(components.owner(ref), f"calling {ref}", PlacementError):
        placement: Placement = components.build(ref)(request)
    devices = tuple(device for pool in placement.pools for device in pool.devices)
    asked = components.plugins.plan_placement(HookRequest(plan.roles, devices))
    placement = placement if asked is None else regrouped(placement, asked)
    check_models(placement, request)
    return placement


def _start(
    plan: RunPlan,
    components: Components,
    folder: Path,
    all_roles: Sequence[Role],
    placement: Placement,
    plans: Mapping[str, ModelPlan],
    hosts: Hosts,
) -> tuple[dict[str, Model], dict[str, Scorer]]:
    """Start the worker groups of a placement, all at once."""
    hosts.reserve(placement)
    fingerprint = components.plugins.fingerprint()
    by_role = {role.name: role for role in all_roles}
    micro = int(getattr(plan.options["train_engine"], "tokens_per_micro", 8192))
    wanted: list[tuple[PoolPlan, str, object]] = []
    names_of: list[list[str]] = []
    for pool in placement.pools:
        roles = [by_role[name] for name in pool.roles]
        names = sorted({r.model for r in roles if r.kind != "score"})
        if names:
            plan_of = WorkerPlan({n: plans[n] for n in names}, fingerprint)
            wanted.append((pool, MODEL_WORKER, plan_of))
            names_of.append(names)
        scored = [role for role in roles if role.kind == "score"]
        if len(scored) > 1 or (scored and names):
            raise PlacementError(
                f"pool {pool.name!r} would hold {', '.join(pool.roles)}",
                hint="a role that scores has a pool of its own",
            )
        for role in scored:
            args = RewardArgs(reward=_scorer(plan, role), model=str(folder), role=role.name)
            wanted.append((pool, REWARD_WORKER, args))
            names_of.append([role.name])
    models: dict[str, Model] = {}
    scorers: dict[str, Scorer] = {}
    for (_, worker, _), names, group in zip(wanted, names_of, hosts.start(wanted), strict=True):
        if worker == MODEL_WORKER:
            models |= {name: Model(name, group, micro) for name in names}
        else:
            spans = bool(group.run("describe")[0]["spans"])
            scorers[names[0]] = Scorer(group, spans)
    if "token_rewards" in plan.reads and not any(s.spans for s in scorers.values()):
        raise ConfigError(
            f"{plan.reference('advantage')} reads rewards of spans; "
            f"reward={plan.choices['reward']} gives none",
            hint="choose a reward that declares `spans = True`, or another advantage",
        )
    for model in models.values():
        model.learn_sizes()
    return models, scorers


def _scorer(plan: RunPlan, role: Role) -> ComponentRef:
    """What a role scores with: its own scorer, the group of its name, or the run's reward."""
    if role.scorer:
        return reward_ref(role.scorer)
    return plan.reference(role.name if role.name in ("reward", "cost") else "reward")


def _algorithm(
    plan: RunPlan,
    components: Components,
    services: Services,
    group: Group,
    handles: Mapping[str, Handle],
) -> Algorithm:
    ref = plan.reference("algorithm")
    algorithm: Algorithm = components.build(ref, plan.run.seed)
    for name, handle in handles.items():
        setattr(algorithm, name, handle)
    algorithm.metrics = services.ledger.drain
    if plan.chosen("loss"):
        algorithm.loss = plan.reference("loss")
        components.loss(algorithm.loss)  # a broken loss is an error here, not in a worker
    if plan.chosen("advantage"):
        advantage = plan.reference("advantage")
        algorithm.advantage = AdvantageRole(
            advantage,
            components.build(advantage),
            components.options(advantage),
            group,
            services,
            components.owner(advantage),
            _parts(plan, components),
        )
        algorithm.reads = plan.reads
    return algorithm


def _parts(plan: RunPlan, components: Components) -> list[Part]:
    """What runs after the estimator: the correction, and a loss that selects tokens."""
    parts = []
    for group in ("correction", "loss"):
        if not plan.chosen(group):
            continue
        ref = plan.reference(group)
        options = components.options(ref)
        if group == "loss":
            if not options.selects:
                continue
            options = Selection(options)
        else:
            components.build(ref)  # a broken one is an error here, not in a worker
        parts.append(Part(ref, options, components.owner(ref)))
    return parts


def load_feeds(plan: RunPlan, components: Components, prompts: Prompts) -> dict[str, TargetFeed]:
    """The supervised data that the algorithm asks for, from the run's task or others."""
    feeds: dict[str, TargetFeed] = {}
    for name, task in plan.algorithm.feeds().items():
        if not task:
            problems = prompts.task.problems("train")
        else:
            ref = ComponentRef("task", task)
            with boundary(components.owner(ref), "reading the task's problems", DataError):
                problems = components.build(ref).problems("train")
        source = prompts.reader.source(problems)
        feeds[name] = TargetFeed(name, source)
    return feeds
