"""``bestiary reshard``: the table, JSON, and one clear message for each mistake."""

import json
import subprocess
import sys

import pytest

from bestiary.cli.main import main


def run(capsys, *words):
    status = main(["reshard", *words])
    return status, capsys.readouterr()


def test_seventy_billion_from_eight_to_four_parts(capsys):
    words = ["--model", "llama-2-70b", "--train", "pp1.tp8.dp16", "--generate", "tp4"]
    status, found = run(capsys, *words)
    assert status == 0
    for way in ("DS-Chat", "HybridFlow-V", "HybridFlow", "bestiary"):
        assert f"│ {way} " in found.out
    assert "[0,1] [2,3]" in found.out  # micro data-parallel groups
    status, found = run(capsys, *words, "--json")
    made = json.loads(found.out)
    ways = {way["way"]: way for way in made["ways"]}
    total = made["weights_bytes"]
    assert total == 2 * 68_976_648_192  # parameters of the published checkpoint, in bf16
    assert ways["HybridFlow"]["received"] == total / 8  # (8 − 4) / (4 · 8)
    assert ways["DS-Chat"]["received"] == total * 127 / 128
    # Norms are not cut, so a rank receives a little less than a formula says that cuts everything.
    uncut = 2 * (2 * 80 + 1) * 8192
    assert ways["bestiary"]["received"] == (total - uncut) / 8
    assert set(made["received_bytes"].values()) == {(total - uncut) // 8}
    assert made["ranks"] == 128


def test_formulae_that_do_not_hold_are_left_out_with_the_reason(capsys):
    _, found = run(capsys, "--model", "gpt2", "--train", "fsdp512", "--generate", "tp2")
    assert "HybridFlow-V" not in found.out
    assert "training without row shards (fsdp)" in found.out
    assert "," * 3 not in found.out
    assert max(map(len, found.out.splitlines())) <= 100  # long groups are cut short
    _, found = run(capsys, "--model", "gpt2", "--train", "tp2.dp4", "--generate", "tp4")
    assert "│ HybridFlow " not in found.out
    assert "whose product divides training's" in found.out


@pytest.mark.parametrize(
    ("model", "train", "generate", "message"),
    [
        ("lama-2-70b", "tp8", "tp4", "no model 'lama-2-70b'; did you mean 'llama-2-70b'?"),
        ("gpt2", "tq8", "tp4", "layout 'tq8': 'tq8' is not a dim with a size"),
        ("gpt2", "tp8", "tp16", "has 16 shards, which do not divide the 8 ranks"),
        ("gpt2", "tp8", "tp2.dp4", "--generate tp2.dp4: generation has the dims pp and tp"),
        ("gpt2", "tp0", "tp1", "tp=0: at least 1 is wanted"),
    ],
)
def test_a_mistake_is_one_error_with_status_2(capsys, model, train, generate, message):
    status, found = run(capsys, "--model", model, "--train", train, "--generate", generate)
    assert status == 2
    assert found.out == ""
    assert message in found.err.splitlines()[0]
    assert "Traceback" not in found.err


def test_it_needs_no_torch():
    code = (
        "import sys; from bestiary.cli.main import main; "
        "main(['reshard', '--model', 'gpt2', '--train', 'tp2', '--generate', 'tp1', '--json']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
