from pathlib import Path

from bestiary.tracking import METRICS, describe
from bestiary.tracking.names import FAMILIES, nearest
from bestiary.tracking.page import main, page

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_table(tmp_path):
    main([str(tmp_path / "metrics.md")])
    assert (tmp_path / "metrics.md").read_text(encoding="utf-8") == page()
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page(), (
        "run: python -m bestiary.tracking.page docs/metrics.md"
    )


def test_the_run_record_of_the_design_is_documented():
    record = (
        "step version reward/mean eval/exact_match kl/reference entropy response_len/mean "
        "loss/policy grad_norm throughput/tokens_per_s time/rollout_s time/score_s time/update_s "
        "time/sync_s time/step_s data/tokens_generated data/samples driver/bytes"
    )
    names = set(record.split())
    assert [n for n in names if n not in METRICS] == []
    assert all(f"`{name}`" in page() for name in [*METRICS])


def test_units_agree_with_the_names():
    for name, doc in METRICS.items():
        assert doc.name == name
        assert doc.help.endswith(".")
        assert (doc.unit == "s") == name.endswith("_s") or name.endswith("tokens_per_s")
        if "fraction" in name:
            assert doc.unit == "fraction"


def test_an_exact_name_goes_before_its_family():
    assert describe("loss/policy") is METRICS["loss/policy"]
    entropy = describe("loss/entropy")
    assert entropy.name == "loss/entropy"
    assert entropy.help == FAMILIES["loss/"].help


def test_a_rank_has_the_unit_of_its_metric():
    doc = describe("rank3/time/update_s")
    assert (doc.unit, doc.better) == ("s", "lower")
    assert doc.help.startswith("Worker 3 alone.")
    assert describe("rank3/unheard").unit == ""


def test_a_name_of_no_family_is_unknown():
    assert describe("speed") is None
    assert describe("loss/") is None
    assert describe("rankle/x") is None
    assert nearest("reward/meen") == "reward/mean"
    assert nearest("zzzzz") == ""
