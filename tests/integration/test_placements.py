"""Every placement gives the numbers of colocate: where a model sits changes nothing else."""

import json

import pytest

SIZES = (
    "task=addition", "model=tiny", "model.hidden=32", "model.layers=2", "model.heads=2",
    "model.warm_start=null", "steps=2", "algorithm.prompts=4", "eval.problems=4",
    "train_engine.lr=1e-3", "display=none", "checkpoint.at_end=false",
)  # fmt: skip
ALGORITHMS = {
    "ppo": ("algorithm.samples=2", "algorithm.kl.coef=0.05"),
    "grpo": ("algorithm.samples=4", "algorithm.kl_coef=0.05"),
    "remax": ("algorithm.kl.coef=0.05",),
}
PLACEMENTS = {
    "split": ("placement=split", "placement.workers=2"),
    "standalone": ("placement=standalone",),
    "explicit": (
        "placement=explicit",
        "placement.pools={one: {roles: [actor]}, two: {roles: [OTHERS], workers: 2}}",
    ),
}
CASES = [("ppo", "split"), ("ppo", "standalone"), ("grpo", "explicit"), ("remax", "split")]


@pytest.fixture(scope="module")
def command(make_command):
    return make_command()


@pytest.fixture(scope="module")
def metrics(command, tmp_path_factory):
    """Records of an algorithm under a placement, run once."""
    made = {}

    def run(algorithm, placement, *words):
        if (algorithm, placement) not in made:
            folder = tmp_path_factory.mktemp("run") / "r"
            words = (*ALGORITHMS[algorithm], *words)
            done = command("train", f"algorithm={algorithm}", *SIZES, *words, f"run_dir={folder}")
            assert done.status == 0, done
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            made[algorithm, placement] = [json.loads(line) for line in lines]
        return made[algorithm, placement]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "placement"), CASES)
def test_the_numbers_are_those_of_colocate(metrics, algorithm, placement):
    others = "reference, critic" if algorithm == "ppo" else "reference"
    words = [w.replace("OTHERS", others) for w in PLACEMENTS[placement]]
    wanted = metrics(algorithm, "colocate")
    found = metrics(algorithm, placement, *words)
    assert len(found) == len(wanted) == 3
    for a, b in zip(found, wanted, strict=True):
        names = [
            n for n in b
            if n.startswith(("reward/", "loss/", "eval/", "kl/", "response_len/"))
            or n in ("grad_norm", "entropy", "data/tokens_generated")
        ]  # fmt: skip
        assert len(names) > 4
        for name in names:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-5), name


@pytest.mark.slow
def test_what_cannot_be_placed_is_refused_with_the_numbers(command, tmp_path):
    done = command(
        "train", "algorithm=ppo", *SIZES, "placement=standalone", "placement.device=cuda",
        f"run_dir={tmp_path / 'r'}",
    )  # fmt: skip
    assert done.status == 2
    assert "gpu" in done.err
    assert "available" in done.err
    assert "Traceback" not in done.err
