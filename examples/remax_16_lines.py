"""REINFORCE with a length-averaged KL to a reference, in 16 lines.

Known as "ReMax in 16 lines"; ReMax itself, with its greedy baseline and the KL summed over the
response, is in ``remax.py``. The reward is 1 for a response without a lower-case letter.

    python examples/remax_16_lines.py
"""

from bestiary import Actor, ReferencePolicy, ResourcePool, RewardModel, load_prompts

actor_group = ResourcePool(devices=["cpu:0", "cpu:1"], name="actor_group")
reward_group = ResourcePool(devices=["cpu:2"], name="reward_group")
shard = {"fsdp": "full_shard"}
actor = Actor(model="tiny:", parallel_config=shard, resource_pool=actor_group, lr=3e-3)
ref = ReferencePolicy(model="tiny:", parallel_config=shard, resource_pool=actor_group)
rm = RewardModel(model="format", pattern="[^a-z]*", resource_pool=reward_group)

for prompts in load_prompts("addition", batch_size=32, steps=20):
    responses = actor.generate_sequences(prompts, max_tokens=8)
    ref_log_probs = ref.get_log_probs(prompts, responses.sequences)
    rewards = rm.score(prompts, responses.texts)
    kl = (responses.log_probs - ref_log_probs).mean(dim=-1)
    advantages = rewards - rewards.mean() - 0.01 * kl
    actor.update(states=prompts, actions=responses.sequences, advantages=advantages)
    print(f"reward {rewards.mean():.3f}  kl {kl.mean():.3f}")
