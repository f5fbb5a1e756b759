"""Aggregates of a suite, and wherever scores are shown: never of fewer members than they have."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.trainings import TRAINING, call, keep, run_of

from coordinate_eval import _files
from coordinate_eval.coordinator.comparison.compare import Measured, aggregate_of
from coordinate_eval.coordinator.display.experiment_page import Experiment, render
from coordinate_eval.coordinator.history.measured import read
from coordinate_eval.coordinator.history.series import series
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError
from coordinate_eval.records import Aggregate, Dataset, DatasetResults, Suite

CORE = Aggregate(factors={"a": 1.0, "b": 0.5}, offset=0.25)  # b is twice as good as guessing
SUITE = Suite(
    name="s",
    digest="d",
    datasets=[Dataset(name="a", task="a"), Dataset(name="b", task="b")],
    aggregates={"core": CORE},
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two checkpoints, one of which lacks a score."""
    run_of(tmp_path, 100, {"a": 0.5, "b": 0.75}, suite=SUITE)
    run_of(tmp_path, 200, {"a": 0.25}, suite=SUITE)
    return tmp_path


def collected(run_dir: RunDir) -> dict[str, Any]:
    """The results that the run has ended with."""
    results = collect_results(run_dir, read_run(run_dir))
    _files.write(run_dir.results, json.dumps(results))
    run_dir.cancelled.unlink()
    return results


def shown(home: Path, *args: str) -> Any:
    answer = call(home, *args)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_history_has_a_column_with_an_error_and_says_what_is_missing(home: Path) -> None:
    found = shown(home, "history", "--json")

    assert found["columns"]["core"] == ["a", "b"]
    (first, second) = (row["columns"]["core"] for row in found["rows"])
    assert first["value"] == pytest.approx(0.5 + 0.375 - 0.25)
    assert first["stderr"] == pytest.approx(math.hypot(0.01, 0.005))
    assert second is None
    said = call(home, "history")
    assert "core is not known of 1 checkpoint, without b" in said.output
    assert "0.6250 ±0.0112" in said.output


def test_the_definition_outlives_the_run_and_the_newest_counts(tmp_path: Path) -> None:
    keep(tmp_path, 1, {"a": 0.5, "b": 0.5}, aggregates={"core": Aggregate(factors={"a": 1.0})})
    keep(tmp_path, 2, {"a": 0.5, "b": 0.7}, aggregates={"core": Aggregate(factors={"b": 1.0})})
    rows = shown(tmp_path, "history", "--json", "--column", "core")["rows"]
    assert [row["columns"]["core"]["value"] for row in rows] == [0.5, 0.7]


def test_the_best_checkpoint_by_an_aggregate(home: Path) -> None:
    found = shown(home, "best", "--by", "core", "--json")
    assert found["step"] == 100
    assert found["without"] == [f"{TRAINING}/step-200"]


def test_scores_of_runs_have_it_in_each_format(home: Path) -> None:
    rows = shown(home, "scores", "--json")["rows"]
    assert [row["aggregates"]["core"]["value"] for row in rows] == [0.625, None]
    assert rows[1]["aggregates"]["core"]["missing"] == ["b"]
    assert "0.6250 ±0.0112" in call(home, "scores").output
    assert "core is not known of 1 run, without b" in call(home, "scores").output
    head, first, second = call(home, "scores", "--csv").stdout.splitlines()[:3]
    assert head.endswith("a,b,core")
    assert first.endswith("0.5,0.75,0.625")
    assert second.endswith("0.25,,")


def test_the_results_of_a_run_have_it_or_say_what_is_missing(home: Path) -> None:
    for step, value, missing in ((100, 0.625, []), (200, None, ["b"])):
        run_dir = run_of(home, step, {"a": 0.5, "b": 0.75} if value else {"a": 0.5}, suite=SUITE)
        results = collected(run_dir)
        core = results["aggregates"]["core"]
        assert (core["value"], core["missing"]) == (value, missing)
        words = "aggregate of 2 datasets" if value else "not known without b"
        assert words in call(home, "status", run_dir.root.name).stdout


def test_a_difference_has_the_error_of_its_parts() -> None:
    def part(name: str, difference: float, stderr: float) -> Measured:
        return Measured(
            name=name, first=0.5, second=0.5 + difference, difference=difference, stderr=stderr,
            low=-1, high=1, p=1, clusters=1000, items=1000,
        )  # fmt: skip

    found = aggregate_of("core", CORE, {"a": part("a", 0.1, 0.02), "b": part("b", -0.1, 0.04)})

    assert found.first == pytest.approx(0.5)
    assert found.difference == pytest.approx(0.05)
    assert found.stderr == pytest.approx(math.hypot(0.02, 0.02))
    assert found.low is not None
    assert found.low < 0.05 - 1.9 * math.hypot(0.02, 0.02)
    bare = aggregate_of("core", CORE, {"a": part("a", 0.1, 0.02), "b": part("b", 0, 0).model_copy(
        update={"low": None})})  # fmt: skip
    assert (bare.low, bare.why_not) == (None, "no interval of b")


def test_compare_leaves_out_what_it_does_not_know(tmp_path: Path) -> None:
    other = SUITE.model_copy(update={"aggregates": {"core": CORE, "mine": CORE}})
    for step, of in ((100, SUITE), (200, other)):
        run_of(tmp_path, step, {"a": 0.5}, suite=of)
    found = shown(tmp_path, "compare", "step-100-x", "step-200-x", "--json")
    assert found["aggregates"] == []
    assert found["left_out"]["core"] == "not known without b"
    assert found["left_out"]["mine"] == "the suites define it differently"


def test_a_mean_of_what_should_rise_and_what_should_fall_is_in_no_column(tmp_path: Path) -> None:
    lower = (9.0, 0.1, 100, "word_perplexity", False, "x")
    keep(tmp_path, 1, {"a": 0.5, "b": lower}, aggregates={"core": CORE})
    assert "core" not in shown(tmp_path, "history", "--json")["columns"]
    answer = call(tmp_path, "history", "--column", "core")
    assert "of b less is better, and of others more" in str(answer.exception)


@pytest.mark.parametrize(
    ("metric", "lower", "words"),
    [
        (
            "word_perplexity",
            True,
            "and of others less: of a (acc) more, of b (word_perplexity) less",
        ),
        ("bleu", False, "unlike metrics: a (acc) and b (bleu)"),
    ],
)
def test_a_mean_of_unlike_metrics_is_not_computed(
    tmp_path: Path, metric: str, lower: bool, words: str
) -> None:
    run_dir = run_of(tmp_path, 100, {"a": 0.5}, suite=SUITE)
    found = DatasetResults(
        dataset="b",
        items=9,
        harness="0",
        results={"b": {f"{metric},none": 0.5}},
        higher_is_better={"b": {metric: not lower}},
    )
    _files.write_record(run_dir.dataset_results("b"), found)

    core = collected(run_dir)["aggregates"]["core"]

    assert core["value"] is None and words in core["why_not"]
    told = " ".join(call(tmp_path, "status", run_dir.root.name).stdout.replace("│", " ").split())
    assert words in told
    (row,) = shown(tmp_path, "scores", "--json")["rows"]
    assert row["aggregates"]["core"]["value"] is None
    said = call(tmp_path, "scores").output
    assert "core is left out: " in said and words in said


def test_the_page_draws_it(tmp_path: Path) -> None:
    for step in range(6):
        keep(tmp_path, step, {"a": 0.5, "b": 0.5}, aggregates={"core": CORE})
    found = series(read(str(tmp_path))[0])
    page = render(Experiment(found, None, [], [], []))
    assert "Aggregates" in page
    assert '"name":"core"' in page


def test_one_of_unlike_datasets_is_left_out_of_the_history_with_the_reason(tmp_path: Path) -> None:
    odd = Aggregate(factors={"a": 0.5, "p": 0.5})
    perplexity = (12.5, 0.1, 100, "word_perplexity", False, "x")
    keep(tmp_path, 1, {"a": 0.5, "p": perplexity}, aggregates={"odd": odd})
    assert "odd is left out: of some of its datasets more" in call(tmp_path, "history").output


def parse(text: str) -> Suite:
    return suite.parse(text, where="my.yaml", folder=Path())


def test_an_aggregate_is_a_weighted_mean_of_members_above_chance() -> None:
    text = """
datasets:
- {name: a, task: t, group: g, chance: 0.25}
- {name: b, task: t, group: g}
- {name: c_1, task: t, chance: 0.5}
- {name: c_2, task: t}
aggregates:
  raw: {of: [g, 'c_*']}
  above: {of: {g: 3, c_1: 1}, normalized: true}
  both: {of: [raw, above]}
"""
    found = parse(text)
    scores = {"a": (0.4, 0.01), "b": (0.6, 0.02), "c_1": (0.7, 0.03), "c_2": (0.1, None)}

    def told(name: str) -> list[float | None]:
        return list(found.aggregates[name].value(scores) or [])

    assert told("raw") == [pytest.approx((0.5 + 0.4) / 2), None]  # an error is not known
    value = (3 * (0.15 / 0.75 + 0.6) / 2 + (0.2 / 0.5)) / 4
    error = math.hypot(3 / 2 * 0.01 / 0.75, 3 / 2 * 0.02, 0.03 / 0.5) / 4
    assert told("above") == [pytest.approx(value), pytest.approx(error)]
    assert told("both") == [pytest.approx((0.45 + value) / 2), None]
    assert found.aggregates["above"].value({"a": (0.4, 0.01)}) is None
    assert found.aggregates["above"].missing({"a"}) == ["b", "c_1"]


def test_aggregates_and_chance_change_no_prompt_and_no_digest() -> None:
    plain = parse("datasets: [a, b]")
    more = parse("datasets: [{name: a, task: a, chance: 0.5}, b]\naggregates: {m: {of: [a, b]}}")
    assert plain.digest == more.digest
    assert suite.narrow(more, only=["a"]).aggregates == more.aggregates
    assert suite.narrow(parse(
        "datasets: [a, b]\naggregates: {m: {of: [a]}}"), only=["b"]).aggregates == {}  # fmt: skip


def test_a_suite_may_change_an_aggregate_that_it_inherits(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "datasets: [a, b]\naggregates: {m: {of: [a, b]}, n: {of: [a]}}"
    )
    (tmp_path / "two.yaml").write_text("extends: one.yaml\naggregates: {m: {of: [b]}}")
    found = suite.load(str(tmp_path / "two.yaml")).aggregates
    assert {name: list(each.factors) for name, each in found.items()} == {"m": ["b"], "n": ["a"]}


def test_inherited_aggregates_go_with_the_datasets_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(
        "datasets: [{name: a, task: t, group: g}, {name: b, task: t}, {name: c, task: t}]\n"
        "aggregates: {x: {of: [g]}, y: {of: [b, x]}, z: {of: ['[bc]']}}\n"
    )
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: parent.yaml\nskip: [a, b]\naggregates: {w: {of: [z]}}\n")
    assert {name: each.factors for name, each in suite.load(str(mine)).aggregates.items()} == {
        "z": {"c": 1.0},
        "w": {"c": 1.0},
    }
    mine.write_text("extends: parent.yaml\nskip: [a]\naggregates: {w: {of: [x]}}\n")
    with pytest.raises(UserError, match=r"aggregate x: there is no dataset, group or .* 'g'"):
        suite.load(str(mine))
