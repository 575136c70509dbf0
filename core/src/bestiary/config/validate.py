"""What options classes say of each other: does everything that is read get made?"""

from typing import TYPE_CHECKING, Final

from bestiary.config.catalog import Catalog
from bestiary.config.schema import OPTIONAL
from bestiary.config.suggest import listing
from bestiary.errors import ConfigError, Owner, PluginError, boundary
from bestiary.kit import KLPenalty

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bestiary.config.plan import RunPlan
    from bestiary.protocols import AlgorithmOptions, Role

SAMPLE_COLUMNS: Final = frozenset(
    {
        "uid",
        "row_key",
        "group",
        "group_uid",
        "parent_uid",
        "sample_index",
        "tag",
        "trainable",
        "version_min",
        "version_max",
        "prompt_len",
        "response_len",
        "loss_tokens",
        "truncated",
        "valid",
        "sample_weight",
        "answer",
    }
)
"""Sample columns of every batch."""

TOKEN_COLUMNS: Final = frozenset({"prompt_ids", "response_ids", "response_mask", "turn_ids"})
"""Token columns of every batch."""

ROLLOUT_COLUMNS: Final = frozenset({"rollout_logprobs", "rollout_logprobs_full", "token_versions"})
"""Token columns that generating adds."""

PAIR_COLUMNS: Final = frozenset({"preferred", "unsafe"})
"""Sample columns of preference pairs; the second where the problems have safety labels."""

LOSS_COLUMNS: Final = frozenset({"old_logprobs", "probs_squared"})
"""Made where they are read: by the training engine, or by ``Algorithm.proximal``."""

_ROLE_COLUMNS: Final = {
    "reference": "ref_logprobs",
    "critic": "values",
    "cost_critic": "cost_values",
}

_WAYS_OUT: Final = {
    "baseline_reward": "an algorithm makes it by a Sampling with tag='baseline'",
    "values": "a role of kind 'value' makes it: Role('critic')",
    "cost_values": "a role of kind 'value' makes it: Role('cost_critic')",
    "ref_logprobs": "the role 'reference' makes it",
    "reward": "a role of kind 'score' makes it: Role('reward', frozen=True)",
    "cost": "a role of kind 'score' makes it: Role('cost', frozen=True)",
    "advantages": "an advantage estimator makes it: advantage=NAME",
}


def check_requirements(plan: "RunPlan", catalog: Catalog) -> None:
    """Refuse a plan in which a column is read that nobody makes.

    Raises:
        ConfigError: naming who reads it, the column, and who could make it.
    """
    algorithm = catalog.choice("algorithm", plan.choices["algorithm"])
    roles = roles_of(plan, catalog)
    _check_roles(roles, algorithm.owner, str(algorithm))
    _check_used(plan, catalog)
    made = provided(plan.algorithm, roles, catalog)
    if plan.chosen("advantage"):
        estimator = plan.options["advantage"]
        _check_kl(plan, catalog)
        _check_columns("advantage", estimator.requires, made | LOSS_COLUMNS, plan, catalog)
        made |= estimator.provides
    _check_correction(plan, made | LOSS_COLUMNS, catalog)
    watched = frozenset(getattr(plan.options["sampler"], "requires", ()))
    _check_columns("sampler", watched, made | LOSS_COLUMNS, plan, catalog)
    if plan.chosen("loss"):
        loss = plan.options["loss"]
        if plan.chosen("advantage"):
            made |= loss.selects
        _check_columns("loss", loss.requires, made | LOSS_COLUMNS, plan, catalog)
        if "values" in loss.outputs and not any(role.kind == "value" for role in roles):
            choice = catalog.choice("loss", plan.choices["loss"])
            raise ConfigError(
                f"{choice} needs the output of a value head; {algorithm} has no role of that kind",
                hint="it has the roles " + listing([role.name for role in roles]),
                owner=choice.owner,
            )


def _check_kl(plan: "RunPlan", catalog: Catalog) -> None:
    """A KL in the reward needs an estimator that puts it there."""
    kl = getattr(plan.algorithm, "kl", None)
    if not isinstance(kl, KLPenalty) or kl.coef == 0 or kl.where == "loss":
        return
    estimator = plan.options["advantage"]
    if "ref_logprobs" not in estimator.requires | estimator.optional:
        choice = catalog.choice("advantage", plan.choices["advantage"])
        raise ConfigError(
            f"{choice} does not put a KL into the reward, and algorithm.kl.coef={kl.coef} with "
            "algorithm.kl.where=reward asks for it",
            hint="set algorithm.kl.where=loss algorithm.kl.kind=k3, or choose another advantage",
            owner=choice.owner,
        )


def _check_correction(plan: "RunPlan", made: frozenset[str], catalog: Catalog) -> None:
    """A correction acts where an estimator is called, and on losses of a policy."""
    if not plan.chosen("correction"):
        return
    choice = catalog.choice("correction", plan.choices["correction"])
    corrected = plan.chosen("loss") and plan.options["loss"].corrected
    if not plan.chosen("advantage") or not corrected:
        algorithm = catalog.choice("algorithm", plan.choices["algorithm"])
        lacks = "advantage estimator" if not plan.chosen("advantage") else "loss that it weights"
        raise ConfigError(
            f"{choice} has no effect: {algorithm} with loss={plan.choices['loss']} has no {lacks}",
            hint="leave correction out, or choose a policy loss",
            owner=choice.owner,
        )
    _check_columns("correction", plan.options["correction"].requires, made, plan, catalog)


def roles_of(plan: "RunPlan", catalog: Catalog) -> "tuple[Role, ...]":
    """The algorithm's roles, failures attributed to its owner."""
    choice = catalog.choice("algorithm", plan.choices["algorithm"])
    with boundary(choice.owner, f"asking {choice} for its roles"):
        return tuple(plan.algorithm.roles())


def provided(
    options: "AlgorithmOptions", roles: "tuple[Role, ...]", catalog: Catalog
) -> frozenset[str]:
    """Columns that are there when advantages are computed."""
    columns = SAMPLE_COLUMNS | TOKEN_COLUMNS | options.provides()
    if options.trains_from == "rollouts":
        columns |= ROLLOUT_COLUMNS
    if options.trains_from == "pairs":
        columns |= PAIR_COLUMNS
    for role in roles:
        if role.kind == "score":
            # Whether a scorer has spans is known when it runs: the session checks it.
            columns |= {role.name, _parts(role.name), "token_rewards"}
        elif role.name in _ROLE_COLUMNS:
            columns |= {_ROLE_COLUMNS[role.name]}
        elif role.kind == "value":
            columns |= {"values"}
        if role.kind == "value":
            columns |= {f"{_ROLE_COLUMNS.get(role.name, 'values')}_after"}
    scored = any(role.kind == "score" for role in roles)
    if scored and any(sampling.tag == "baseline" for sampling in options.samplings()):
        columns |= {"baseline_reward"}
    return columns


def _parts(role: str) -> str:
    return "parts" if role == "reward" else f"parts_{role}"


def _check_roles(roles: "tuple[Role, ...]", owner: Owner, what: str) -> None:
    names = [role.name for role in roles]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PluginError(f"{what} has the role '{twice[0]}' twice", owner=owner)
    if all(role.frozen or role.kind == "score" for role in roles):
        raise PluginError(
            f"{what} trains nothing: its roles {listing(names)} are all frozen",
            hint="one role of kind 'policy' or 'value' must not be frozen",
            owner=owner,
        )


def _check_used(plan: "RunPlan", catalog: Catalog) -> None:
    """An algorithm uses the optional groups that it names a default for, and only these."""
    algorithm = catalog.choice("algorithm", plan.choices["algorithm"])
    components: Mapping[str, str] = plan.algorithm.components
    names = [role.name for role in roles_of(plan, catalog)]
    if plan.choices["cost"] != "task" and "cost" not in names:
        raise ConfigError(
            f"cost={plan.choices['cost']} has no effect: {algorithm} has no role 'cost'",
            hint=f"leave cost out; it has the roles {listing(names)}",
            owner=algorithm.owner,
        )
    for group in OPTIONAL:
        chosen = plan.choices[group]
        if plan.chosen(group) and group not in components:
            raise ConfigError(
                f"{group}={chosen} has no effect: {algorithm} uses no {group}",
                hint=f"leave {group} out",
                owner=algorithm.owner,
            )
        if not plan.chosen(group) and group in components:
            raise ConfigError(
                f"{algorithm} needs a component of the group '{group}', {group}={chosen} is none",
                hint=f"its default is {group}={components[group]}",
                owner=algorithm.owner,
            )


def _check_columns(
    group: str, requires: frozenset[str], made: frozenset[str], plan: "RunPlan", catalog: Catalog
) -> None:
    missing = sorted(requires - made)
    if not missing:
        return
    choice = catalog.choice(group, plan.choices[group])
    algorithm = catalog.choice("algorithm", plan.choices["algorithm"])
    columns = " and ".join(f"'{name}'" for name in missing)
    roles = listing([role.name for role in plan.roles])
    ways = [_WAYS_OUT[name] for name in missing if name in _WAYS_OUT]
    raise ConfigError(
        f"{choice} reads the column {columns}, which nobody makes: "
        f"{algorithm} has the roles {roles}",
        hint="; ".join([*ways, f"choose another {group} or another algorithm"]),
        owner=choice.owner,
    )
