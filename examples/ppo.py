"""PPO (Schulman et al. 2017, arXiv:1707.06347) with a critic on a pool of its own.

python examples/ppo.py
"""

from bestiary import (
    Actor,
    Advantage,
    Critic,
    ReferencePolicy,
    ResourcePool,
    RewardModel,
    load_prompts,
)

STEPS, EPOCHS = 15, 2


def digits(samples):
    """The share of digits in each response."""
    return [sum(c.isdigit() for c in s.response) / s.response_len for s in samples]


policy = ResourcePool(devices=["cpu:0", "cpu:1"], name="policy")
values = ResourcePool(devices=["cpu:2"], name="values")
actor = Actor("tiny:", resource_pool=policy, lr=3e-3)
ref = ReferencePolicy("tiny:", resource_pool=policy)
critic = Critic("tiny:", resource_pool=values, lr=3e-3)
rm = RewardModel(digits)
gae = Advantage("gae", lam=0.95)

for step, prompts in enumerate(load_prompts("addition", batch_size=32, steps=STEPS), 1):
    responses = actor.generate_sequences(prompts, max_tokens=8)
    rewards = rm.score(prompts, responses.texts)
    old_log_probs = actor.get_log_probs(prompts, responses.sequences)
    old_values = critic.get_values(prompts, responses.sequences)
    made = gae(
        responses,
        rewards=rewards,
        values=old_values,
        ref_log_probs=ref.get_log_probs(prompts, responses.sequences),
        kl_coef=0.01,
    )
    for _ in range(EPOCHS):  # the pools work side by side
        metrics = actor.update(
            actions=responses,
            advantages=made.advantages,
            loss="clip",
            old_log_probs=old_log_probs,
        )
        errors = critic.update(actions=responses, returns=made.returns, old_values=old_values)
    print(
        f"step {step:2}  reward {rewards.mean():.3f}  clipped {metrics['clip/fraction']:.2f}  "
        f"value error {errors['value/error']:.3f}"
    )
