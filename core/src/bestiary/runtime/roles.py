"""From declared roles to handles: which models there are, where they live, who sees them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bestiary.engines.engine_api import ModelSpec
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
class ModelSource:
    """Where models of a run come from."""

    path: str
    dtype: str
    train: ComponentRef
    rollout: ComponentRef


def model_plans(roles: Iterable[Role], source: ModelSource) -> dict[str, ModelPlan]:
    """One plan for each model that the roles need.

    A role without a ``model`` has one of its own name. Roles on one model must agree on its
    head, and the model is trained if any of them is.
    """
    plans: dict[str, ModelPlan] = {}
    for role in roles:
        if role.kind == "score":
            continue
        name = role.model or role.name
        head = "value" if role.kind == "value" else "lm"
        trainable = not role.frozen
        if name in plans:
            if plans[name].spec.head != head:
                raise ConfigError(
                    f"roles on model {name!r} want the heads {plans[name].spec.head!r} and {head!r}"
                )
            trainable = trainable or plans[name].spec.trainable
        spec = ModelSpec(
            path=source.path,
            head=head,  # type: ignore[arg-type]  # narrowed above
            dtype=source.dtype,  # type: ignore[arg-type]  # checked by the model's options
            trainable=trainable,
        )
        rollout = source.rollout if head == "lm" and trainable else None
        plans[name] = ModelPlan(spec, source.train, rollout)
    return plans


def make_handles(
    roles: Iterable[Role],
    models: Mapping[str, Model],
    scorers: Mapping[str, Group],
    services: Services,
    temperature: float,
) -> dict[str, Handle]:
    """The handle of each role."""
    handles: dict[str, Handle] = {}
    for role in roles:
        if role.kind == "score":
            handles[role.name] = ScoreRole(role.name, scorers[role.name], services)
            continue
        model = models[role.model or role.name]
        kind = ValueRole if role.kind == "value" else PolicyRole
        handles[role.name] = kind(
            role.name, model, services, frozen=role.frozen, temperature=temperature
        )
    return handles
