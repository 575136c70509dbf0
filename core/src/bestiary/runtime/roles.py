"""From declared roles to handles: which models there are, where they live, who sees them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bestiary.engines.engine_api import ModelSpec
from bestiary.engines.hybrid.engine import Policy
from bestiary.errors import ConfigError
from bestiary.protocols import ComponentRef, Role
from bestiary.roles.model import Group, Model
from bestiary.roles.policy import PolicyRole
from bestiary.roles.score import ScoreRole
from bestiary.roles.services import Services
from bestiary.roles.value import ValueRole
from bestiary.runtime.worker import ModelPlan

Handle = PolicyRole | ValueRole | ScoreRole


@dataclass(frozen=True, slots=True)
class Scorer:
    """The worker group of a role that scores, and whether its scores have spans."""

    group: Group
    spans: bool = False


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where models of a run come from.

    Args:
        path: folder of the run's model.
        dtype: of computation.
        train: the training engine.
        rollout: the rollout engine.
        paths: folders of other models, by what roles call them.
        residency: what becomes of training state while a model generates.
    """

    path: str
    dtype: str
    train: ComponentRef
    rollout: ComponentRef
    paths: Mapping[str, str] = field(default_factory=dict)
    residency: Policy = "keep"

    @property
    def lora(self) -> bool:
        """Whether trained models are adapters on frozen base weights."""
        return self.train.options.get("lora") is not None


def on_models(roles: Iterable[Role], *, lora: bool) -> tuple[Role, ...]:
    """Roles with the name of their model filled in.

    A role without a ``model`` has one of its own name. Under LoRA a frozen policy role that
    starts from the actor's weights is the actor without its adapter, and costs no memory.
    """
    roles = tuple(roles)
    trained = next((r for r in roles if r.kind == "policy" and not r.frozen and not r.path), None)
    found = []
    for role in roles:
        if role.kind == "score" or role.model:
            found.append(role)
        elif lora and trained is not None and _is_base(role):
            found.append(replace(role, model=trained.model or trained.name, adapter="off"))
        else:
            found.append(replace(role, model=role.name))
    return tuple(found)


def _is_base(role: Role) -> bool:
    return role.kind == "policy" and role.frozen and not role.path


def model_plans(roles: Iterable[Role], source: ModelSource) -> dict[str, ModelPlan]:
    """One plan for each model that the roles (from :func:`on_models`) are views of.

    A model has the heads that its roles need, is trained if any of them is, and can generate if
    one of them is a policy that is trained or that stands alone.

    Raises:
        ConfigError: if roles on one model disagree about its weights or its learning rate.
    """
    views: dict[str, list[Role]] = {}
    for role in roles:
        if role.kind != "score":
            views.setdefault(role.model, []).append(role)
    return {name: _model_plan(name, its, source) for name, its in views.items()}


def _model_plan(name: str, views: list[Role], source: ModelSource) -> ModelPlan:
    heads = {"value" if role.kind == "value" else "lm" for role in views}
    path = _one(name, "path", [role.path for role in views if role.path]) or ""
    lr = _one(name, "lr", [role.lr for role in views if role.lr is not None])
    trainable = not all(role.frozen for role in views)
    spec = ModelSpec(
        path=source.paths.get(path, source.path),
        head="lm+value" if len(heads) == 2 else heads.pop(),  # type: ignore[arg-type]
        dtype=source.dtype,  # type: ignore[arg-type]  # checked by the model's options
        trainable=trainable,
        lr=lr,
    )
    rollout = source.rollout if "lm" in spec.head else None
    return ModelPlan(spec, source.train, rollout, source.residency)


def _one(model: str, what: str, values: list[Any]) -> Any:  # noqa: ANN401 - a path or a number
    if len(set(values)) > 1:
        raise ConfigError(f"roles on model {model!r} want different values of {what}: {values}")
    return values[0] if values else None


def make_handles(
    roles: Iterable[Role],
    models: Mapping[str, Model],
    scorers: Mapping[str, Scorer],
    services: Services,
    temperature: float,
) -> dict[str, Handle]:
    """The handle of each role (from :func:`on_models`)."""
    handles: dict[str, Handle] = {}
    for role in roles:
        if role.kind == "score":
            scorer = scorers[role.name]
            handles[role.name] = ScoreRole(role.name, scorer.group, services, spans=scorer.spans)
            continue
        kind = ValueRole if role.kind == "value" else PolicyRole
        handles[role.name] = kind(
            role.name,
            models[role.model],
            services,
            frozen=role.frozen,
            temperature=temperature,
            adapter=role.adapter,
        )
    return handles
