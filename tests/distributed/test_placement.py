import pytest

from bestiary.distributed.options import ColocateOptions
from bestiary.distributed.placement import (
    Machine,
    Placement,
    PlacementRequest,
    PoolDemand,
    PoolPlan,
    check_demand,
    check_models,
    local_cpus,
    pool_demand,
    slot_cpus,
)
from bestiary.distributed.strategies import Colocate
from bestiary.errors import PlacementError
from bestiary.protocols import Role

ROLES = (Role("actor"), Role("reference", frozen=True), Role("reward", frozen=True))


def test_colocate_puts_models_in_one_pool_and_the_scorer_in_its_own():
    placement = Colocate(ColocateOptions(workers=2, threads=3))(PlacementRequest(ROLES))
    models, scorers = placement.pools
    assert models.roles == ("actor", "reference")
    assert models.devices == ("cpu:0", "cpu:1")
    assert models.threads == 3
    assert (scorers.roles, scorers.workers, scorers.device) == (("reward",), 1, "cpu")
    assert placement.pool_of("reference") is models


def test_a_reward_model_goes_to_the_models():
    request = PlacementRequest(ROLES, scorers=frozenset())
    (models,) = Colocate(ColocateOptions(workers=1, device="cuda"))(request).pools
    assert models.roles == ("actor", "reference", "reward")
    assert models.devices == ("cuda:0",)


def test_a_role_in_no_pool_or_in_two_is_refused():
    pool = PoolPlan("a", 1, "cpu", ("actor",))
    with pytest.raises(PlacementError, match="'critic' is in no pool"):
        Placement((pool,)).pool_of("critic")
    with pytest.raises(PlacementError, match="role actor more than once"):
        Placement((pool, PoolPlan("b", 1, "cpu", ("actor",))))


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"device": "tpu"}, {"threads": 0}, {"timeout_s": 0.0}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ColocateOptions(**options)


@pytest.mark.parametrize(
    ("demand", "machine", "message"),
    [
        (
            PoolDemand("train", ("actor",), 8, cpu=1, gpu=1),
            Machine(32, 4),
            "role 'actor' (pool 'train'): gpu 8 requested, 4 available",
        ),
        (
            PoolDemand("train", ("critic",), 6, cpu=10, gpu=1),
            Machine(32, 8),
            "role 'critic' (pool 'train'): cpu 60 requested, 32 available",
        ),
    ],
)
def test_use_01_names_role_resource_requested_and_available(demand, machine, message):
    with pytest.raises(PlacementError) as caught:
        check_demand([demand], [machine])
    assert message in caught.value.message
    other = "cpu" if "gpu 8" in message else "gpu"
    assert f": {other}" not in caught.value.message


def test_demand_that_fits_only_alone_is_refused_together():
    demands = [PoolDemand("a", ("actor",), 2, cpu=1), PoolDemand("b", ("critic",), 3, cpu=1)]
    check_demand(demands[:1], [Machine(4)])
    check_demand(demands[1:], [Machine(4)])
    with pytest.raises(PlacementError, match="all pools together: cpu 5 requested, 4 available"):
        check_demand(demands, [Machine(4)])


def test_bundles_must_fit_machines_not_only_the_sum():
    machines = [Machine(8, 1), Machine(8, 1)]
    check_demand([PoolDemand("a", (), 2, cpu=1, gpu=1)], machines)
    with pytest.raises(PlacementError, match="1 bundles of gpu 2, cpu 2 requested, 0 fit"):
        check_demand([PoolDemand("a", (), 1, cpu=2, gpu=2)], machines)


def test_spreading_needs_as_many_machines():
    demand = pool_demand(PoolPlan("a", 4, "cpu", (), nodes=2))
    assert (demand.count, demand.cpu, demand.apart) == (2, 2.0, True)
    check_demand([demand], [Machine(2), Machine(2)])
    with pytest.raises(PlacementError, match="on a machine of its own each requested, 1 fit"):
        check_demand([demand], [Machine(8)])
    with pytest.raises(PlacementError, match="spread evenly over 3 machines"):
        pool_demand(PoolPlan("a", 4, "cpu", (), nodes=3))


@pytest.mark.parametrize(("slots", "cpus"), [(1, 1.0), (2, 0.5), (3, 0.3333), (7, 0.1428)])
def test_slots_of_one_core_never_add_up_to_more_than_it(slots, cpus):
    assert slot_cpus(slots_per_core=slots) == cpus
    check_demand([PoolDemand("a", (), slots, cpu=cpus)], [Machine(1)])


def test_a_small_machine_runs_many_workers_with_a_warning():
    models = pool_demand(PoolPlan("models", 4, "cpu", ()))
    scorers = pool_demand(PoolPlan("scorers", 1, "cpu", ()))
    cpus, warning = local_cpus([models, scorers], cores=2)
    assert cpus == 5
    assert "4 cores are asked for by workers and this machine has 2" in warning


def test_the_scorer_alone_does_not_oversubscribe():
    models = pool_demand(PoolPlan("models", 2, "cpu", ()))
    scorers = pool_demand(PoolPlan("scorers", 1, "cpu", ()))
    assert local_cpus([models, scorers], cores=2) == (3, "")
    assert local_cpus([models], cores=8) == (8, "")


def test_views_of_one_model_share_its_pool():
    roles = (Role("actor"), Role("reference", frozen=True, model="actor", adapter="off"))
    parted = Placement(
        (PoolPlan("a", 1, "cpu", ("actor",)), PoolPlan("b", 1, "cpu", ("reference",)))
    )
    with pytest.raises(PlacementError, match="model 'actor' are in different pools: actor in 'a'"):
        check_models(parted, PlacementRequest(roles))
    together = Placement((PoolPlan("a", 1, "cpu", ("actor", "reference")),))
    check_models(together, PlacementRequest(roles))
