"""The KL as a part: options, coefficient, state."""

import pytest

from bestiary.kit import KLControl, KLPenalty


def test_without_strength_there_is_no_reference_and_no_term():
    kl = KLPenalty()
    assert kl.roles() == ()
    assert kl.provides() == frozenset()
    control = KLControl(kl)
    assert (control.scalars(), control.terms(), control.step({}, 8)) == ({}, (), {})


def test_in_the_reward_it_is_a_scalar_and_in_the_loss_a_term():
    control = KLControl(KLPenalty(coef=0.1))
    assert control.scalars() == {"kl_coef": 0.1, "kl_kind": "k1"}
    assert control.terms() == ()
    control = KLControl(KLPenalty(coef=0.1, where="loss", kind="k3"))
    assert control.scalars() == {}
    (term,) = control.terms()
    assert (term.loss, term.coef) == ("kl", 0.1)
    assert term.options == {"kind": "k3", "gradient": "value"}
    assert [role.name for role in control.options.roles()] == ["reference"]


def test_MATH_adaptive_controller_by_hand():
    # err = clip(0.15/0.1 - 1, -0.2, 0.2) = 0.2; beta *= 1 + 0.2 * 512/10000
    control = KLControl(KLPenalty(coef=0.2, target=0.1))
    assert control.step({"kl/reward": 0.15}, 512) == {"kl/coef": 0.2}
    assert control.coef == pytest.approx(0.2 * (1 + 0.2 * 512 / 10_000), rel=1e-12)
    control.step({"kl/reward": 0.095}, 1000)  # err = -0.05
    assert control.coef == pytest.approx(0.2 * 1.01024 * (1 - 0.05 * 0.1), rel=1e-12)
    other = KLControl(control.options)
    other.load_state_dict(control.state_dict())
    assert other.coef == control.coef


@pytest.mark.parametrize("metrics", [{}, {"kl/reward": float("nan")}])
def test_without_a_measured_kl_the_coefficient_stays(metrics):
    control = KLControl(KLPenalty(coef=0.2, target=0.1))
    control.step(metrics, 512)
    assert control.coef == 0.2


@pytest.mark.parametrize(
    "options",
    [
        {"coef": -0.1},
        {"target": 0.1},
        {"coef": 0.1, "target": 0.0},
        {"coef": 0.1, "horizon": 0},
        {"coef": 0.1, "where": "loss"},
    ],
)
def test_options_without_meaning_are_refused(options):
    with pytest.raises(ValueError, match="kl"):
        KLPenalty(**options)
