"""The library's objects on real worker processes: values, laziness, updates and errors."""

import numpy as np
import pytest
import torch

import bestiary
from bestiary.distributed.traffic import driver_bytes
from bestiary.errors import BestiaryError, ConfigError, PlacementError
from bestiary.protocols import Term

PROMPTS = ["1+1=", "2+2=", "one and one is", "7"]


@pytest.fixture(scope="module")
def drawn(lab):
    return lab.actor.generate_sequences(PROMPTS, n=3, max_tokens=7, greedy_baseline=True)


def test_models_on_one_pool_share_its_processes(lab):
    assert lab.actor.model.group is lab.reference.model.group
    assert lab.actor.model.group.size == 2
    assert lab.critic.model.group is not lab.actor.model.group
    assert (lab.actor.name, lab.reference.name) == ("actor", "reference")


def test_rows_come_in_the_order_of_the_prompts(drawn):
    assert len(drawn) == 12
    assert drawn.prompts == [p for p in PROMPTS for _ in range(3)]
    assert all(0 < n <= 7 for n in drawn.lengths.tolist())
    assert len(drawn.texts) == 12
    assert next(iter(drawn.texts)) == drawn.texts[0]
    assert drawn.tensor().shape == drawn.mask.shape
    assert drawn.mask.sum(-1).tolist() == drawn.lengths.tolist()


def test_arithmetic_on_the_shards_is_that_of_tensors(lab, drawn):
    ref = lab.reference.get_log_probs(PROMPTS, drawn.sequences)
    a, b, mask = drawn.log_probs.tensor(), ref.tensor(), drawn.mask
    each = np.linspace(-1, 1, 12)
    made = (2.0 * (drawn.log_probs - ref) / 3.0 + each).exp().clamp(max=1.5)
    wanted = (2.0 * (a - b) / 3.0 + torch.from_numpy(each)[:, None]).exp().clamp(max=1.5)
    torch.testing.assert_close(made.tensor() * mask, wanted * mask, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(made.sum(dim=-1).tensor(), (wanted * mask).sum(-1))
    means = (wanted * mask).sum(-1) / mask.sum(-1)
    torch.testing.assert_close(made.mean(dim=-1).tensor(), means)


def test_an_actor_and_its_reference_agree_with_the_engine_that_drew(lab, drawn):
    """Same weights: trainer, reference and engine differ by rounding only."""
    assert lab.actor.version == 0
    own = lab.actor.get_log_probs(PROMPTS, drawn.sequences).tensor()
    ref = lab.reference.get_log_probs(PROMPTS, drawn.sequences).tensor()
    torch.testing.assert_close(own, ref, rtol=0, atol=0)
    torch.testing.assert_close(own, drawn.log_probs.tensor(), rtol=1e-5, atol=1e-5)


def test_scores_are_those_of_the_function_on_the_texts(lab, drawn):
    scores = lab.reward.score(PROMPTS, drawn.texts)
    lengths = drawn.lengths.numpy()
    wanted = [sum(c.isdigit() for c in t) / n for t, n in zip(drawn.texts, lengths, strict=True)]
    np.testing.assert_allclose(scores, wanted)
    assert scores.baseline.numpy().reshape(4, 3).std(axis=1).max() == 0.0  # one a prompt
    advantage = scores - scores.baseline
    np.testing.assert_allclose(advantage, scores.numpy() - scores.baseline.numpy())
    with_lengths = lab.reward.score(PROMPTS, ["12", "x1", "", "9999"])
    assert len(with_lengths) == 4
    assert np.isnan(with_lengths.numpy()).all()  # texts of one's own have no tokens


def test_the_same_prompt_again_draws_something_else(lab):
    twice = [lab.actor.generate_sequences(["12+34="] * 2, n=2, max_tokens=12) for _ in range(2)]
    texts = [tuple(t) for s in twice for t in s.tensor().tolist()]
    assert len(set(texts)) == len(texts)


def test_no_token_column_passes_through_this_process(lab):
    before = driver_bytes()
    answers = lab.actor.generate_sequences(PROMPTS * 8, n=32, max_tokens=64)
    ref = lab.reference.get_log_probs(None, answers.sequences)
    kl = (answers.log_probs - ref).sum(dim=-1)
    assert len(kl) == 1024
    lab.actor.update(actions=answers, advantages=-0.0 * kl)["grad_norm"]
    passed = driver_bytes() - before
    tokens = int(answers.lengths.numpy().sum())
    # 23 bytes a token are made by generation and 4 by the reference: over a megabyte of columns.
    assert tokens * 27 > 1_000_000
    assert passed < 0.15 * tokens * 27
    answers.log_probs.tensor()
    assert driver_bytes() - before - passed > 4 * tokens  # bringing a column here is counted


def test_an_update_moves_the_policy_in_the_direction_of_the_advantages(lab):
    answers = lab.actor.generate_sequences(PROMPTS, n=8, max_tokens=6)
    signs = np.where(np.arange(32) % 2 == 0, 1.0, -1.0)
    before = lab.actor.get_log_probs(None, answers).sum().numpy()
    version = lab.actor.version
    metrics = lab.actor.update(PROMPTS, answers.sequences, signs)
    after = lab.actor.get_log_probs(None, answers).sum().numpy()
    assert lab.actor.version == version + 1
    assert ((after - before) * signs).mean() > 0
    assert metrics["grad_norm"] > 0
    # −A·log π, summed over tokens and averaged over responses: the loss at the old policy.
    assert metrics["loss/reinforce"] == pytest.approx(-(signs * before).mean(), rel=1e-4)


def test_samples_without_a_value_are_left_out(lab):
    answers = lab.actor.generate_sequences(PROMPTS, n=2, max_tokens=6)
    half = np.array([1.0, np.nan] * 4)
    old = lab.actor.get_log_probs(None, answers).sum().numpy()
    metrics = lab.actor.update(actions=answers, advantages=half)
    assert metrics["loss/reinforce"] == pytest.approx(-old[::2].mean(), rel=1e-4)


def test_ratios_start_at_one_with_a_named_loss_and_advantages_for_each_token(lab):
    answers = lab.actor.generate_sequences(PROMPTS, n=2, max_tokens=6)
    old = lab.actor.get_log_probs(None, answers.sequences)
    advantages = torch.ones(8, int(answers.lengths.numpy().max()))
    metrics = lab.actor.update(
        actions=answers, advantages=advantages, loss="clip", old_log_probs=old, clip_low=0.1,
        terms=[Term("entropy", coef=0.01)],
    )  # fmt: skip
    assert metrics["loss/clip"] == pytest.approx(-1.0, abs=1e-5)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5)
    assert "loss/entropy" in metrics


def test_gae_and_a_critic_on_another_pool(lab):
    answers = lab.actor.generate_sequences(PROMPTS, n=2, max_tokens=5)
    values = lab.critic.get_values(PROMPTS, answers.sequences)
    rewards = np.arange(8.0)
    made = bestiary.Advantage("gae", gamma=1.0, lam=1.0, whiten=False)(
        answers, rewards=rewards, values=values
    )
    # lam = gamma = 1: the return of every token is the reward at the end.
    wanted = torch.from_numpy(rewards)[:, None] * answers.mask
    torch.testing.assert_close(made.returns.tensor(), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close((made.advantages + values).tensor(), wanted, rtol=1e-6, atol=1e-6)
    errors = [
        lab.critic.update(actions=answers, returns=made.returns)["value/error"] for _ in range(6)
    ]
    assert errors[-1] < errors[0]


def test_supervised_training_on_given_texts(lab):
    answers = lab.actor.sequences(["a", "b"], ["xy", "zz"])
    assert list(answers.texts) == ["xy", "zz"]
    losses = [lab.actor.update(actions=answers, loss="nll")["loss/nll"] for _ in range(8)]
    assert losses[-1] < losses[0]


def test_weights_can_be_saved_and_loaded_by_transformers(lab, tmp_path):
    from transformers import AutoModelForCausalLM

    folder = lab.actor.save(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    answers = lab.actor.generate_sequences(["1+1="], max_tokens=3, greedy=True)
    ids = lab.actor.tokenizer.encode_prompt("1+1=")
    made = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=3, pad_token_id=0)[
        0, len(ids) :
    ]
    length = int(answers.lengths[0])
    assert made[:length].tolist() == answers.tensor()[0, :length].tolist()


# --------------------------------------------------------------------------- mistakes


def test_mistakes_name_what_is_wanted(lab, drawn):
    group = lab.pool
    wrong = bestiary.ResourcePool(devices=["cpu:0"], name="policy")
    cases = [
        (lambda: bestiary.Actor("no/such-model-here/x"), BestiaryError, "is not there"),
        (lambda: bestiary.Actor("tiny:", lrr=1), ConfigError, "lrr"),
        (
            lambda: bestiary.Actor("tiny:", parallel_config={"fdsp": "full_shard"}),
            ConfigError,
            "did you mean 'fsdp'",
        ),
        (
            lambda: bestiary.Actor("tiny:", parallel_config={"fsdp": "ful_shard"}),
            ConfigError,
            "did you mean 'full_shard'",
        ),
        (lambda: bestiary.Actor("tiny:", resource_pool=wrong), PlacementError, "two pools"),
        (lambda: bestiary.RewardModel("exact_mach"), BestiaryError, "exact_mach"),
        (
            lambda: bestiary.RewardModel("exact_match", resource_pool=group),
            PlacementError,
            "pool of its own",
        ),
        (lambda: bestiary.Advantage("gea"), BestiaryError, "did you mean 'gae'"),
        (
            lambda: bestiary.Advantage("gae")(drawn, rewards=np.zeros(12)),
            ConfigError,
            "reads values",
        ),
        (
            lambda: lab.actor.update(actions=drawn, advantages=np.zeros(5)),
            ConfigError,
            r"shape \(5,\)",
        ),
        (
            lambda: lab.actor.update(actions=drawn, advantages=np.zeros(12), loss="clipp"),
            BestiaryError,
            "did you mean 'clip'",
        ),
        (lambda: lab.actor.update(actions=["text"]), TypeError, "actor.sequences"),
        (
            lambda: lab.actor.get_log_probs(["a"], drawn),
            ConfigError,
            "1 prompts for",
        ),
        (lambda: lab.actor.generate_sequences([]), BestiaryError, "no prompts"),
        (lambda: lab.actor.generate_sequences([3]), BestiaryError, "prompt 0 is a int"),
        (lambda: np.sin(drawn.log_probs), TypeError, "tensor"),
        (lambda: drawn.log_probs.sum(dim=0), ValueError, "dim=-1"),
        (lambda: lab.actor.sequences(["a", "b"], ["x"]), ValueError, "cannot be shared out"),
    ]
    for call, kind, pattern in cases:
        with pytest.raises(kind, match=pattern):
            call()
    # Nothing of it has hurt the workers.
    assert len(lab.actor.generate_sequences(["ok"], max_tokens=2).lengths.tolist()) == 1


def test_a_pool_that_cannot_be_had_is_refused_at_once(lab):
    big = bestiary.ResourcePool(devices=[f"cpu:{i}" for i in range(500)], name="big")
    with pytest.raises(PlacementError, match="500 requested"):
        bestiary.Actor("tiny:", resource_pool=big)
    with pytest.raises(PlacementError, match="gpu 2 requested, 0 available"):
        bestiary.Actor("tiny:", resource_pool=bestiary.ResourcePool(num_gpus=2, name="gpus"))
