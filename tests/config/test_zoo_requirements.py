"""What the zoo's members ask of each other is checked before anything starts."""

from pathlib import Path

import pytest

from bestiary.config.compose import compose_run
from bestiary.errors import ConfigError

REFUSED = {
    "algorithm=grpo advantage=remax": "baseline_reward",
    "algorithm=grpo advantage=gae": "values",
    "algorithm=grpo advantage=lagrangian": "cost",
    "algorithm=ppo advantage=group algorithm.kl.coef=0.1": "does not put a KL into the reward",
    "algorithm=ppo advantage=gdpo algorithm.kl.coef=0.1": "does not put a KL into the reward",
    "algorithm=grpo sampler=prioritised": "sampler=prioritised reads the column",
    "algorithm=sft correction=tis": "has no effect",
    "algorithm=ppo loss=decoupled correction=tis": "no loss that it weights",
    "algorithm=grpo cost=length": "has no role 'cost'",
    "algorithm=safe_rlhf": "declares no cost",
    "algorithm=grpo loss=dpo": "preferred",
    "algorithm=grpo loss=value": "values",
    "algorithm=ppo algorithm.shared_trunk=true algorithm.critic_lr=1e-3": "one model",
    "algorithm=remax algorithm.kl_decay=linear": "kl_steps",
    "algorithm=ppo algorithm.kl.coef=0.1 algorithm.kl.where=loss": "expected gradient of zero",
}

ACCEPTED = (
    "algorithm=ppo advantage=vtrace loss=cispo sampler=dynamic",
    "algorithm=grpo advantage=rloo algorithm.kl_coef=0.1",
    "algorithm=grpo correction=tis correction.level=sequence",
    "algorithm=grpo train_engine.lora.rank=8",
    "algorithm=safe_rlhf cost=length",
    "algorithm=ppo sampler=prioritised",
    "algorithm=grpo sampler=prioritised sampler.by=kl",
    "algorithm=remax advantage=rloo",
)


@pytest.mark.parametrize("words", REFUSED)
def test_a_plan_that_cannot_work_is_refused(words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        compose_run([*words.split(), "task=addition", "model=tiny"])


@pytest.mark.parametrize("words", ACCEPTED)
def test_components_combine(words):
    compose_run([*words.split(), "task=addition", "model=tiny"])


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("name", [p.stem for p in (CONFIGS / "experiment").glob("*.yaml")])
def test_every_experiment_composes(name):
    compose_run([f"+experiment={name}"], CONFIGS)
