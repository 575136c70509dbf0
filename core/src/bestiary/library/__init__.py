"""The plain library: models, rewards and pools as objects, for a script or a notebook.

Its names are those of the package::

    from bestiary import Actor, ResourcePool, RewardModel, load_prompts

    pool = ResourcePool(devices=["cpu:0", "cpu:1"], name="policy")
    actor = Actor("tiny:", parallel_config={"fsdp": "full_shard"}, resource_pool=pool)
    reward = RewardModel("exact_match")
    for prompts in load_prompts("addition", batch_size=16, steps=10):
        answers = actor.generate_sequences(prompts, n=4)
        scores = reward.score(prompts, answers.texts)
        actor.update(states=prompts, actions=answers.sequences, advantages=scores - scores.mean())

Calls return at once and reading a value waits, so calls to different pools overlap. Token columns
stay with the workers: arithmetic on them is sent there. Nothing is started before the first model
is made; everything is ended when the program ends, whichever way.
"""
