"""ReMax (Li et al. 2023, arXiv:2310.10505): the greedy response is the baseline; no critic.

A = r(response) − r(greedy response) − β·Σ_t (log π − log π_ref), one number a response (the
appendix's form of the KL). The greedy responses are drawn in the same engine call as the others.

    python examples/remax.py
"""

from bestiary import Actor, ReferencePolicy, ResourcePool, RewardModel, load_prompts

STEPS, BETA = 40, 0.01


def digits(samples):
    """The share of digits in each response."""
    return [sum(c.isdigit() for c in s.response) / s.response_len for s in samples]


policy = ResourcePool(devices=["cpu:0", "cpu:1"], name="policy")
actor = Actor("tiny:", parallel_config={"fsdp": "full_shard"}, resource_pool=policy, lr=5e-3)
ref = ReferencePolicy("tiny:", parallel_config={"fsdp": "full_shard"}, resource_pool=policy)
rm = RewardModel(digits, resource_pool=ResourcePool(devices=["cpu:2"], name="reward"))

for step, prompts in enumerate(load_prompts("addition", batch_size=32, steps=STEPS), 1):
    responses = actor.generate_sequences(prompts, max_tokens=8, greedy_baseline=True)
    ref_log_probs = ref.get_log_probs(prompts, responses.sequences)
    rewards = rm.score(prompts, responses.texts)
    kl = (responses.log_probs - ref_log_probs).sum(dim=-1)
    advantages = rewards - rewards.baseline - BETA * kl
    metrics = actor.update(prompts, responses.sequences, advantages)
    print(
        f"step {step:2}  reward {rewards.mean():.3f}  greedy {rewards.baseline.mean():.3f}  "
        f"kl {kl.mean():.3f}  grad_norm {metrics['grad_norm']:.3f}"
    )
