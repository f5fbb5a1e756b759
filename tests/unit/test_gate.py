"""`gate` decides a rule if its whole interval is on one side; `compare` says where none is."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trainings import call, run_of

from coordinate_eval import _files
from coordinate_eval.coordinator.comparison.gate import decision, read_policy
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import UserError
from coordinate_eval.records import DatasetItems, DatasetResults, ItemScores

ITEMS = 400


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two runs; the second one wins 40 of 400 items of `a`, and loses none of `b`."""
    for step, right in ((100, 200), (200, 240)):
        run_dir = run_of(tmp_path, step, {"a": right / ITEMS, "b": 0.5})
        for name, count in (("a", right), ("b", 200)):
            values: list[float | None] = [float(item < count) for item in range(ITEMS)]
            table = ItemScores(
                task=name, filter="none", items=list(range(ITEMS)), documents="d",
                metrics={"acc": values},
            )  # fmt: skip
            run_dir.items(name).parent.mkdir(exist_ok=True)
            written = DatasetItems(dataset=name, tables=[table])
            run_dir.items(name).write_text(written.model_dump_json(by_alias=True))
    return tmp_path


def gate(home: Path, *rules: str, against: str | None = "step-100-x") -> tuple[int, dict[str, Any]]:
    """Return the exit status, and what is printed as JSON."""
    policy = home / "policy.yaml"
    policy.write_text("rules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules))
    more = ["--against", against] if against else []
    said = call(home, "gate", "step-200-x", "--policy", str(policy), "--json", *more)
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    return said.exit_code, json.loads(said.stdout)


def test_each_bound_is_decided_on_both_sides(home: Path) -> None:
    for rule, status in (
        ("of: a, at_least: 0.55", 0),
        ("of: a, at_least: 0.65", 1),
        ("of: a, at_most: 0.65", 0),
        ("of: a, at_most: 0.55", 1),
        ("of: a, gains_at_least: 0.05", 0),
        ("of: a, gains_at_least: 0.2", 1),
        ("of: b, loses_at_most: 0.02", 0),
        ("of: mean, gains_at_least: 0.03", 0),
        ("of: 'mean(a,b)', gains_at_least: 0.1", 1),
    ):
        assert gate(home, rule)[0] == status, rule


def test_what_its_interval_leaves_open_is_inconclusive_with_the_items_that_would_decide(
    home: Path,
) -> None:
    status, said = gate(home, "of: a, at_least: 0.59")

    (rule,) = said["rules"]
    assert (status, said["decision"]) == (3, "INCONCLUSIVE")
    assert rule["low"] < 0.59 < rule["high"]
    # The interval reaches 1.96 errors of 0.01, and the value is 0.01 above the bound.
    assert rule["items"] == pytest.approx(100 * 1.96**2, abs=1)


def test_all_rules_have_to_be_met(home: Path) -> None:
    assert gate(home, "of: a, at_least: 0.55", "of: a, at_least: 0.59")[0] == 3
    assert gate(home, "of: a, at_least: 0.59", "of: a, at_least: 0.7")[0] == 1
    assert decision([]) == "GO"


def test_a_dataset_without_a_score_decides_nothing(home: Path) -> None:
    (home / "step-200-x" / "results" / "b.json").unlink()

    for rule in (
        "of: b, at_least: 0.1",
        "of: 'mean(a,b)', at_least: 0.1",
        "of: 'mean(*)', at_most: 1",
    ):
        status, said = gate(home, rule, against=None)
        assert (status, said["rules"][0]["why"]) == (3, "not scored: b")


def test_a_mean_of_the_datasets_that_did_not_fail_is_no_mean(home: Path) -> None:
    (home / "step-200-x" / "results" / "b.json").unlink()

    status, said = gate(home, "of: mean, at_least: 0.1", against=None)

    assert (status, said["rules"][0]["datasets"]) == (3, 2)
    assert said["rules"][0]["why"] == "not scored: b"


def test_a_rule_of_what_the_run_has_not_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match="no dataset or group 'c'"):
        gate(home, "of: c, at_least: 0.1", against=None)


def test_a_rule_that_compares_needs_a_baseline(home: Path) -> None:
    with pytest.raises(UserError, match="give the baseline with --against"):
        gate(home, "of: a, gains_at_least: 0.01", against=None)


def test_all_right_is_no_certainty(home: Path) -> None:
    run_of(home, 200, {"a": 1.0, "b": 0.5})
    scores = {"a": {"acc,none": 1.0, "acc_stderr,none": 0.0}}
    found = DatasetResults(dataset="a", items=100, harness="0.4.9", results=scores)
    _files.write_record(RunDir(home / "step-200-x").dataset_results("a"), found)

    for rule, status in (("at_least: 0.95", 0), ("at_least: 1", 3), ("at_most: 1", 3)):
        assert gate(home, f"of: a, {rule}", against=None)[0] == status, rule


def test_a_baseline_that_is_not_there_is_refused_and_one_asked_otherwise_decides_nothing(
    home: Path,
) -> None:
    with pytest.raises(UserError, match="no run 'nothing'"):
        gate(home, "of: a, at_least: 0.1", against="nothing")
    path = RunDir(home / "step-100-x").dataset_results("a")
    before = _files.read_record(path, DatasetResults)
    _files.write_record(path, before.model_copy(update={"versions": {"a": 2}}))

    assert gate(home, "of: b, loses_at_most: 0.02")[0] == 0
    status, said = gate(home, "of: a, gains_at_least: 0.05")
    assert status == 3 and said["rules"][0]["why"].startswith("asked differently: a (version")


def test_questions_without_a_verdict_are_said_beside_the_decision(home: Path) -> None:
    path = RunDir(home / "step-200-x").dataset_results("a")
    before = _files.read_record(path, DatasetResults)
    judge = {"questions": 400, "without_verdict": 160, "refused": 160}
    _files.write_record(path, before.model_copy(update={"judge": judge}))

    said = gate(home, "of: a, at_least: 0.3", against=None)[1]
    assert "no verdict on 160 of 400 questions" in said["warnings"]["a"]


def test_people_see_the_decision_and_its_rules(home: Path) -> None:
    policy = home / "p.yaml"
    policy.write_text("rules: [{of: a, at_least: 0.55}]")

    said = call(home, "gate", "step-200-x", "--policy", str(policy))

    assert said.exit_code == 0
    for word in (
        "the score is at least 0.55",
        "0.6000",
        "0.5804 … 0.6196",
        "GO: /ckpts/seven/step-200",
    ):
        assert word in said.stdout


def test_compare_has_no_interval_of_one_item_and_counts_nothing(tmp_path: Path) -> None:
    for step in (100, 200):
        run_dir = run_of(tmp_path, step, {"a": 1.0})
        scores = {"a": {"acc,none": 1.0}}
        found = DatasetResults(dataset="a", items=1, harness="0", results=scores)
        _files.write_record(run_dir.dataset_results("a"), found)
        table = ItemScores(
            task="a", filter="none", items=[0], documents="d", metrics={"acc": [1.0]}
        )
        _files.write_record(run_dir.items("a"), DatasetItems(dataset="a", tables=[table]))

    told = call(tmp_path, "compare", "step-100-x", "step-200-x").output

    assert "step 200 against step 100: no dataset can be compared item by item." in told
    assert "a has no interval: it has one item" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: []", "at least 1"),
        ("rules: [{of: a}]", "has 0 bounds"),
        ("rules: [{of: a, at_least: 1, at_most: 2}]", "has 2 bounds"),
        ("rules: [{of: a, at_lest: 1}]", "at_lest"),
        ("rules: [{of: a, at_least: .nan}]", "at_least"),
        ("rules: [{of: a, loses_at_most: -1}]", "loses_at_most"),
        ("rules: {", "line 2: this is not YAML"),
        ("- a", "a mapping with `rules`"),
    ],
)
def test_a_malformed_policy_is_refused_by_its_field(tmp_path: Path, text: str, words: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)

    with pytest.raises(UserError, match=words):
        read_policy(policy)
