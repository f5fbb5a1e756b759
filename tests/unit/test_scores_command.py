"""`runs` and `scores`: which number stands for a dataset, and the tables of many runs."""

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.plans import CHECKPOINT
from tests.trainings import call

from coordinate_eval import _files
from coordinate_eval.coordinator.report.main_metric import Score, main_score
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.records import DatasetResults, Outputs


def results(name: str, tasks: dict[str, dict[str, Any]], **more: Any) -> DatasetResults:
    return DatasetResults.model_validate(
        {"dataset": name, "items": 1, "results": tasks, **more}, extra="forbid"
    )


def test_the_main_metric_stands_for_a_dataset_unless_another_is_asked_for() -> None:
    choice: dict[str, Any] = {
              "alias": "a", "sample_len": 9, "acc,none": 0.5, "acc_stderr,none": 0.1,
              "acc_norm,none": 0.6, "acc_norm_stderr,none": 0.2}  # fmt: skip
    assert main_score(results("a", {"a": choice})) == Score("acc_norm", 0.6, 0.2, 1)
    assert main_score(results("a", {"a": choice}), "acc") == Score("acc", 0.5, 0.1, 1)
    assert main_score(results("a", {"a": choice}), "f1") is None
    sums: dict[str, Any] = {"exact_match,strict-match": 0.3, "exact_match,flexible-extract": 0.4,
            "exact_match_stderr,strict-match": "N/A"}  # fmt: skip
    assert main_score(results("a", {"a": sums})) == Score("exact_match,strict-match", 0.3, None, 1)
    wanted = "exact_match,flexible-extract"
    assert main_score(results("a", {"a": sums}), wanted) == Score(wanted, 0.4, None, 1)
    cloze: dict[str, Any] = {"perplexity,none": 40.0, "acc,none": 0.2}
    lower = {"a": {"perplexity": False, "acc": True}}
    assert main_score(results("a", {"a": cloze}, higher_is_better=lower)) == Score(
        "acc", 0.2, None, 1
    )
    assert main_score(results("a", {"a": {"alias": "a", "acc,none": "N/A"}})) is None


def test_what_says_something_of_the_judge_is_no_score() -> None:
    silent: dict[str, Any] = {"no_verdict,none": 12.0, "position_bias,none": 0.5}
    judged = results("a", {"a": silent}, judge={"model": "judge", "questions": 12})
    assert main_score(judged) is None
    assert main_score(judged, "no_verdict") == Score("no_verdict", 12.0, None, 1)


def test_a_group_without_a_score_has_the_mean_of_its_tasks() -> None:
    tasks: dict[str, dict[str, Any]] = {
        "g": {"alias": "g"},
        "x": {"acc,none": 0.2},
        "y": {"acc,none": 0.4},
    }
    found = main_score(results("g", tasks, groups={"g": {}}))
    assert found is not None
    assert (found.metric, found.tasks, found.stderr) == ("acc", 2, None)
    assert found.value == pytest.approx(0.3)
    mixed = tasks | {"y": {"f1,none": 0.4}}
    assert main_score(results("g", mixed, groups={"g": {}})) is None
    own = tasks | {"g": {"acc,none": 0.9}}
    assert main_score(results("g", own, groups={"g": {}})) == Score("acc", 0.9, None, 1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three runs of steps 100, 200 and 300; the last one has one of two scores."""
    for number, (step, names) in enumerate(((200, "ab"), (100, "ab"), (300, "a"))):
        run_dir = RunDir(tmp_path / f"step-{step}-x")
        checkpoint = CHECKPOINT.model_copy(update={"path": f"/ckpts/step-{step}"})
        run = make_run(
            id=f"step-{step}-x", nonce=str(step), checkpoint=checkpoint,
            created=time.time() - 86400 * 3 + number,
        )  # fmt: skip
        _files.write_record(run_dir.run, run)
        for name in names:
            found = results(name, {name: {"acc,none": step / 1000}})
            _files.write_record(run_dir.dataset_results(name), found)
        _files.write(run_dir.results, json.dumps({"complete": names == "ab", "missing": {}}))
        _files.write(run_dir.cancelled, "")  # no scheduler is asked about them
    return tmp_path


def test_runs_are_listed_newest_first(home: Path) -> None:
    rows = json.loads(call(home, "runs", "--dataset", "b", "--json").stdout)
    assert [row["run"] for row in rows] == ["step-300-x", "step-100-x", "step-200-x"]
    assert [row["state"] for row in rows] == ["cancelled", "complete", "complete"]
    assert [row["score"] and row["score"]["value"] for row in rows] == [None, 0.1, 0.2]
    assert rows[0].keys() >= {"checkpoint", "suite", "state", "age_seconds", "datasets_scored"}
    text = call(home, "runs", "--dataset", "a", "--limit", "2").stdout
    for word in ("step-300-x", "step-100-x", "3 days", "0.3000", "acc", "1 of 2", "1 older run:"):
        assert word in text
    assert "step-200-x" not in text
    assert isinstance(call(home, "runs", "--dataset", "nothing").exception, UserError)


def test_a_run_that_is_linked_is_listed_once(home: Path) -> None:
    (home / "linked").symlink_to(home / "step-100-x")
    assert len(json.loads(call(home, "runs", "--json").stdout)) == 3


def test_without_runs_that_is_said(tmp_path: Path) -> None:
    assert call(tmp_path, "runs").stdout.startswith("no runs under")
    assert call(tmp_path, "scores").stdout.startswith("no runs under")
    assert json.loads(call(tmp_path, "runs", "--json").stdout) == []


def test_an_unreadable_run_does_not_hide_the_others(home: Path) -> None:
    (home / "torn").mkdir()
    (home / "torn" / "run.json").write_text("{")
    done = call(home, "runs", "--json")
    assert len(json.loads(done.stdout)) == 3
    assert "torn/run.json" in done.stderr


@pytest.mark.parametrize("text", ["[]", "{}", '{"comp'])
@pytest.mark.parametrize("name", ["results.json", "results/a.json"])
def test_a_torn_result_does_not_hide_other_runs(home: Path, name: str, text: str) -> None:
    (home / "step-100-x" / "cancelled").unlink()
    torn = home / "step-100-x" / name
    torn.write_text(text)
    rows = json.loads(call(home, "scores", "--json").stdout)["rows"]
    assert [row["step"] for row in rows] == [200, 300]
    assert name in call(home, "scores").stderr
    rows = json.loads(call(home, "runs", "--dataset", "a", "--json").stdout)
    assert [row["run"] for row in rows] == ["step-300-x", "step-200-x"]
    assert isinstance(call(home, "scores", "step-100-x").exception, RecordError)


def test_brackets_are_no_markup(home: Path) -> None:
    run = make_run(id="step-100-x", nonce="100")
    run = run.model_copy(update={"suite": run.suite.model_copy(update={"name": "[/s]"})})
    _files.write_record(RunDir(home / "step-100-x").run, run)
    found = results("a", {"a": {"acc,[/f]": 0.5}})
    for step in (100, 200, 300):
        _files.write_record(RunDir(home / f"step-{step}-x").dataset_results("a"), found)
    assert "[/s]" in call(home, "runs").stdout
    assert "acc,[/f]" in call(home, "runs", "--dataset", "a").stdout
    assert "acc,[/f]" in call(home, "scores").stdout


JUDGE = {
    "model": "m", "revision": "1", "rubric": "r", "rubric_digest": "aa", "prompts_digest": "bb",
    "questions": 1, "without_verdict": 0, "refused": 0,
}  # fmt: skip


def _judge(home: Path, step: int, *, items: int = 1, **changes: Any) -> None:
    found = results("a", {"a": {"score,none": 7.0}}, judge=JUDGE | changes)
    found = found.model_copy(update={"items": items})
    _files.write_record(RunDir(home / f"step-{step}-x").dataset_results("a"), found)


def test_a_judge_of_whom_little_is_known_is_no_obstacle(home: Path) -> None:
    found = results("a", {"a": {"score,none": 7.0}}, judge={"questions": 1})
    for step in (100, 200, 300):
        _files.write_record(RunDir(home / f"step-{step}-x").dataset_results("a"), found)
    rows = json.loads(call(home, "scores", "--json").stdout)["rows"]
    assert [row["scores"]["a"]["value"] for row in rows] == [7.0] * 3


def test_one_judge_is_compared(home: Path) -> None:
    for step in (100, 200):
        _judge(home, step, questions=step)
    _judge(home, 300, items=2, prompts_digest="of other items")
    listed = json.loads(call(home, "runs", "--dataset", "a", "--json").stdout)
    assert [row["score"]["value"] for row in listed] == [7.0] * 3
    done = call(home, "scores", "--json")
    assert [row["scores"]["a"]["value"] for row in json.loads(done.stdout)["rows"]] == [7.0] * 3
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "n"}, "judges differ: m@1 by rubric r (aa) in step-100-x; n@1 by rubric"),
        ({"revision": "2"}, "judges differ: m@1 by rubric r (aa) in step-100-x; m@2 by rubric"),
        ({"rubric_digest": "cc"}, "judges differ"),
        ({"prompts_digest": "cc"}, "told different things in step-100-x and step-200-x"),
    ],
)
def test_scores_of_different_judges_are_not_shown_together(
    home: Path, changes: dict[str, Any], words: str
) -> None:
    _judge(home, 100)
    _judge(home, 200, **changes)
    named = ("scores", "step-100-x", "step-200-x")
    done = call(home, *named, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [list(row["scores"]) for row in rows] == [["b"], ["b"]]
    assert f"dataset a is not shown: its {words}" in done.stderr.replace("its judge was", "its")
    done = call(home, "runs", "--dataset", "a", "--json")
    assert [row["score"] for row in json.loads(done.stdout)] == [None] * 3
    assert "scores of dataset a are not shown" in done.stderr
    for step in (100, 200):
        RunDir(home / f"step-{step}-x").dataset_results("b").unlink()
        assert "7.0000" in call(home, "scores", f"step-{step}-x").stdout
    assert isinstance(call(home, *named).exception, UserError)


def test_scores_are_ordered_by_step(home: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(call(home, "scores", "--csv").stdout)))
    assert [row["step"] for row in rows] == ["100", "200", "300"]
    assert [row["a"] for row in rows] == ["0.1", "0.2", "0.3"]
    assert [row["b"] for row in rows] == ["0.1", "0.2", ""]
    assert [row["complete"] for row in rows] == ["true", "true", "false"]
    document = json.loads(call(home, "scores", "--json").stdout)
    assert document["datasets"] == ["a", "b"]
    assert document["rows"][2]["scores"] == {
        "a": {"metric": "acc", "value": 0.3, "stderr": None, "tasks": 1}
    }
    text = call(home, "scores").stdout
    assert "300*" in text
    assert "* not all results are there" in text
    table = call(home, "scores", "--markdown").stdout.splitlines()
    assert table[:3] == [
        "| step | a<br>acc | b<br>acc |", "| ---: | ---: | ---: |", "| 100 | 0.1000 | 0.1000 |",
    ]  # fmt: skip


@pytest.fixture
def trainings(home: Path) -> Path:
    """The runs of `home`, and one of another training whose checkpoint has the same step."""
    run_dir = RunDir(home / "other")
    checkpoint = CHECKPOINT.model_copy(update={"path": "/more/ckpts/step-100"})
    suite = make_run().suite.model_copy(update={"name": "early"})
    run = make_run(id="other", nonce="o", checkpoint=checkpoint, suite=suite, created=time.time())
    _files.write_record(run_dir.run, run)
    found = results("a", {"a": {"acc,none": 0.7, "acc_stderr,none": 0.02}})
    _files.write_record(run_dir.dataset_results("a"), found)
    _files.write(run_dir.results, json.dumps({"complete": True, "missing": {}}))
    _files.write(run_dir.cancelled, "")
    return home


def test_two_trainings_have_a_column_each_step_its_label_and_each_score_its_error(
    trainings: Path,
) -> None:
    table = call(trainings, "scores", "--markdown").stdout.splitlines()
    assert table[0].startswith("| training | step |")
    assert "| /ckpts | 100 | 0.1000 | 0.1000 |" in table
    assert "| more/ckpts | 100 | 0.7000 ±0.0200 |  |" in table
    assert "0.7000 ±0.0200" in call(trainings, "scores").stdout
    rows = json.loads(call(trainings, "scores", "--json").stdout)["rows"]
    assert {row["training"] for row in rows} == {"/ckpts", "/more/ckpts"}


@pytest.mark.parametrize("args", [("--checkpoints", "/more/ckpts"), ("--suite", "early")])
def test_runs_of_one_training_or_suite_are_chosen(trainings: Path, args: tuple[str, str]) -> None:
    rows = json.loads(call(trainings, "scores", "--json", *args).stdout)["rows"]
    assert [row["run"] for row in rows] == ["other"]
    listed = json.loads(call(trainings, "runs", "--json", *args).stdout)
    assert [row["run"] for row in listed] == ["other"]
    refused = call(trainings, "scores", "other", *args).exception
    assert "choose among all runs" in str(refused)


def test_scores_of_named_runs_come_once_each_and_in_order(home: Path) -> None:
    done = call(home, "scores", "step-200-x", str(home / "step-100-x"), "step-200-x", "--json")
    assert [row["step"] for row in json.loads(done.stdout)["rows"]] == [100, 200]


def test_many_datasets_are_shown_in_parts(tmp_path: Path) -> None:
    names = [f"dataset_{i}" for i in range(12)]
    run_dir = RunDir(tmp_path / "r")
    suite = {"name": "s", "digest": "d", "datasets": [{"name": n, "task": n} for n in names]}
    _files.write_record(run_dir.run, make_run(suite=suite, shards=[], created=1))
    for name in names:
        _files.write_record(run_dir.dataset_results(name), results(name, {name: {"acc,none": 0.5}}))
    text = call(tmp_path, "scores").stdout
    assert max(map(len, text.splitlines())) <= 100
    for name in names:
        assert text.count(f"{name} ") == 1, name


def test_tables_of_scores_and_status_warn(home: Path) -> None:
    run_dir = RunDir(home / "step-100-x")
    found = results("a", {"a": {"acc,none": 0.1}}, outputs=Outputs(responses=10, repeated=4))
    _files.write_record(run_dir.dataset_results("a"), found)
    line = "a: 40% of answers are mostly repetition"
    assert f"100: {line}" in call(home, "scores").stdout
    assert line in call(home, "scores", str(run_dir.root)).stdout
    rows = json.loads(call(home, "scores", "--json").stdout)["rows"]
    assert [row["warnings"] for row in rows] == [[line], [], []]
    shown = json.loads(call(home, "status", str(run_dir.root), "--json").stdout)["datasets"]["a"]
    assert shown["warnings"] == [line]
    assert shown["outputs"]["repeated"] == 4
    assert line in call(home, "status", str(run_dir.root)).stdout


def test_one_run_as_the_harness_writes_it(home: Path) -> None:
    found = json.loads(call(home, "scores", "step-100-x", "--output-format", "lm_eval").stdout)
    assert found["results"] == {"a": {"acc,none": 0.1}, "b": {"acc,none": 0.1}}
    assert found["model_name"] == "/ckpts/step-100"
    assert found["config"]["model_args"]["pretrained"] == "/ckpts/step-100"


def test_one_run_as_a_model_card(home: Path) -> None:
    a = results("a", {"a": {"acc,none": 0.3, "acc_stderr,none": 0.01}}, n_shot={"a": 5},
                harness="0.4.13")  # fmt: skip
    _files.write_record(RunDir(home / "step-300-x").dataset_results("a"), a)
    lines = call(home, "scores", "step-300-x", "--output-format", "model-card").stdout.splitlines()
    assert lines[:3] == [
        "| dataset | metric | n-shot | score | ± stderr |",
        "| --- | --- | ---: | ---: | ---: |",
        "| a | acc | 5 | 0.3000 | 0.0100 |",
    ]
    assert lines[4].startswith("step-300, suite s (")
    assert lines[4].endswith("lm-evaluation-harness 0.4.13. Without: b.")
    judged = a.model_copy(update={"judge": {"model": "judge", "revision": "1"}})
    _files.write_record(RunDir(home / "step-300-x").dataset_results("a"), judged)
    shown = call(home, "scores", "step-300-x", "--output-format", "model-card").stdout
    assert shown.endswith("Without: b. Rated by judge@1: a.\n")


@pytest.mark.parametrize(
    "args",
    [
        ("--output-format", "lm_eval"),
        ("step-100-x", "step-200-x", "--output-format", "model-card"),
        ("step-100-x", "--output-format", "lm_eval", "--metric", "acc"),
        ("--output-format", "xml"),
        ("--csv", "--output-format", "json"),
        ("--csv", "--json"),
        ("--metric", "f1"),
        ("nobody's",),
    ],
)
def test_what_makes_no_sense_is_refused(home: Path, args: tuple[str, ...]) -> None:
    assert isinstance(call(home, "scores", *args).exception, UserError)


def test_the_formats_are_those_of_the_flags(home: Path) -> None:
    for form in ("csv", "json", "markdown"):
        named = call(home, "scores", "--output-format", form).stdout
        assert named == call(home, "scores", f"--{form}").stdout
