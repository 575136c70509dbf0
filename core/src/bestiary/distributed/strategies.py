"""The built-in placements: which models share processes. Pure functions of the roles.

Colocate, split and standalone are those of HybridFlow (arXiv:2409.19256, section 8.3).
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from bestiary.distributed.options import (
    ColocateOptions,
    DeviceOptions,
    ExplicitOptions,
    SplitOptions,
    StandaloneOptions,
    at_least,
)
from bestiary.distributed.placement import (
    MODELS,
    SCORERS,
    Placement,
    PlacementRequest,
    PoolPlan,
    model_of,
)
from bestiary.errors import PlacementError

_OF_A_POOL = ("device", "threads", "slots_per_core", "nodes", "timeout_s")


def scorer_pools(names: Iterable[str], timeout_s: float) -> list[PoolPlan]:
    """A CPU process for each role that scores."""
    return [
        PoolPlan(
            name=SCORERS if not number else f"{SCORERS}-{role}",
            workers=1,
            device="cpu",
            roles=(role,),
            timeout_s=timeout_s,
        )
        for number, role in enumerate(names)
    ]


def _scorers(request: PlacementRequest) -> list[str]:
    return [role.name for role in request.roles if request.is_scorer(role)]


def _names(request: PlacementRequest, models: Iterable[str]) -> tuple[str, ...]:
    """The roles of some models, in the order of the algorithm."""
    chosen = set(models)
    return tuple(
        role.name
        for role in request.roles
        if not request.is_scorer(role) and model_of(role) in chosen
    )


def _pool(options: DeviceOptions, name: str, workers: int, roles: tuple[str, ...]) -> PoolPlan:
    shared = {key: getattr(options, key) for key in _OF_A_POOL}
    return PoolPlan(name=name, workers=workers, roles=roles, **shared)


class Colocate:
    """The placement ``colocate``: one pool for the models, a process for each scorer.

    Args:
        options: the registered dataclass.
    """

    def __init__(self, options: ColocateOptions) -> None:
        self.options = options

    def __call__(self, request: PlacementRequest) -> Placement:
        """Partition the roles of a request."""
        o = self.options
        roles = _names(request, request.models())
        pools = [_pool(o, MODELS, o.workers, roles)] if roles else []
        return Placement((*pools, *scorer_pools(_scorers(request), o.timeout_s)))


class Split:
    """The placement ``split``: actor (and reference) on one pool, the other models on a second.

    Args:
        options: the registered dataclass.
    """

    def __init__(self, options: SplitOptions) -> None:
        self.options = options

    def __call__(self, request: PlacementRequest) -> Placement:
        """Partition the roles of a request.

        Raises:
            PlacementError: for a single model, which cannot be split.
        """
        o, models = self.options, request.models()
        policies = [m for m, roles in models.items() if any(r.kind == "policy" for r in roles)]
        first = policies if len(policies) < len(models) else policies[:1]
        second = [m for m in models if m not in first]
        if not second:
            names = ", ".join(role.name for roles in models.values() for role in roles)
            raise PlacementError(
                f"placement=split needs two models; the roles {names} are views of one",
                hint="use placement=colocate",
            )
        pools = (
            _pool(o, "first", o.workers, _names(request, first)),
            _pool(o, "second", o.second_workers, _names(request, second)),
        )
        return Placement((*pools, *scorer_pools(_scorers(request), o.timeout_s)))


class Standalone:
    """The placement ``standalone``: a pool for each model.

    Args:
        options: the registered dataclass.
    """

    def __init__(self, options: StandaloneOptions) -> None:
        self.options = options

    def __call__(self, request: PlacementRequest) -> Placement:
        """Partition the roles of a request.

        Raises:
            PlacementError: for the size of a model that there is not.
        """
        o, models = self.options, request.models()
        for name in o.sizes:
            if name not in models:
                raise PlacementError(
                    f"placement.sizes names {name!r}{_near(name, models)}; "
                    f"the models are {', '.join(models)}"
                )
        pools = [
            _pool(o, name, o.sizes.get(name, o.workers), _names(request, [name])) for name in models
        ]
        return Placement((*pools, *scorer_pools(_scorers(request), o.timeout_s)))


class Explicit:
    """The placement ``explicit``: pools as they are written.

    Args:
        options: the registered dataclass.
    """

    def __init__(self, options: ExplicitOptions) -> None:
        self.options = options

    def __call__(self, request: PlacementRequest) -> Placement:
        """Partition the roles of a request.

        Raises:
            PlacementError: naming the pool, and the role that is missing, unknown or named twice.
        """
        o = self.options
        if not o.pools:
            raise PlacementError(
                "placement=explicit without pools",
                hint="placement.pools={policy: {roles: [actor, reference], workers: 2}}",
            )
        pools = [self._read(name, written) for name, written in o.pools.items()]
        self._check(pools, request)
        named = {role for pool in pools for role in pool.roles}
        rest = [name for name in _scorers(request) if name not in named]
        return Placement((*pools, *scorer_pools(rest, o.timeout_s)))

    def _read(self, name: str, written: Any) -> PoolPlan:  # noqa: ANN401 - what a person wrote
        known = {f.name for f in fields(PoolPlan)} - {"name"}
        if not isinstance(written, Mapping):
            raise PlacementError(
                f"placement.pools.{name} is {written!r}; roles and workers are wanted",
                hint=f"placement.pools={{{name}: {{roles: [actor], workers: 1}}}}",
            )
        for key in written:
            if key not in known:
                raise PlacementError(
                    f"placement.pools.{name} has no setting {key!r}{_near(str(key), known)}; "
                    f"it has {', '.join(sorted(known))}"
                )
        roles = written.get("roles", ())
        if isinstance(roles, str) or not roles:
            raise PlacementError(
                f"placement.pools.{name}.roles is {roles!r}; a list of roles is wanted"
            )
        shared = {key: getattr(self.options, key) for key in _OF_A_POOL}
        given = {**shared, "workers": 1, **written, "roles": tuple(map(str, roles))}
        try:
            for key in ("workers", "threads", "slots_per_core"):
                at_least(f"pools.{name}.{key}", given[key], 1)
            if given["device"] not in ("cpu", "cuda"):
                raise ValueError(
                    f"placement pools.{name}.device={given['device']!r}: must be 'cpu' or 'cuda'"
                )
        except ValueError as error:
            raise PlacementError(str(error)) from None
        return PoolPlan(name=str(name), **given)

    def _check(self, pools: list[PoolPlan], request: PlacementRequest) -> None:
        known = [role.name for role in request.roles]
        placed = Placement(tuple(pools))  # refuses a role in two pools
        for pool in placed.pools:
            for role in pool.roles:
                if role not in known:
                    raise PlacementError(
                        f"placement.pools.{pool.name} names the role {role!r}"
                        f"{_near(role, known)}; the algorithm has {', '.join(known)}"
                    )
        named = {role for pool in pools for role in pool.roles}
        missing = [
            role.name
            for role in request.roles
            if not request.is_scorer(role) and role.name not in named
        ]
        if missing:
            raise PlacementError(
                f"placement=explicit leaves out {', '.join(missing)}",
                hint="every model role is in exactly one pool",
            )


def _near(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""
