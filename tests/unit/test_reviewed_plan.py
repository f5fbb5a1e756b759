"""Reading a plan file: what is in it is run as it is, or it is no plan."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.plan_examples import CAPACITIES, COSTS, plan_of
from tests.random_examples import examples
from tests.reviewer import Reviewer
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.inputs.settings import MetricSettings
from coordinate_eval.coordinator.planning import reviewed_plan
from coordinate_eval.coordinator.planning.contradictions import contradictions
from coordinate_eval.coordinator.planning.plan import Capacity, Cost
from coordinate_eval.errors import UserError


def test_a_plan_that_no_planner_would_make_is_run_as_it_is(reviewer: Reviewer) -> None:
    planned = reviewer.plan()
    cost = planned["datasets"][0]
    template = planned["trials"][0]["shards"][0] | {"dataset": cost["name"]}
    mine = [template | {"start": i, "stop": i + 1} for i in range(cost["items"])]
    for trial in planned["trials"]:
        trial["shards"] = [s for s in trial["shards"] if s["dataset"] != cost["name"]]
    planned["trials"][0]["shards"] += mine
    reviewer.file.write_text(json.dumps(planned))
    run = reviewer.submit()
    shards = json.loads((run / "planned.json").read_text())["shards"]
    assert sum(s["dataset"] == cost["name"] for s in shards) == cost["items"]


def test_a_plan_of_another_program_may_lack_what_was_added(reviewer: Reviewer) -> None:
    planned = reviewer.plan()
    del planned["metric_cpus"], planned["max_length"]
    planned["metric_jobs"][0]["cpus"] = 2
    reviewer.file.write_text(json.dumps(planned))
    usual = reviewer.settings
    reviewer.settings = usual.model_copy(update={"metrics": MetricSettings(cpus=1)})
    reviewer.refused("metric jobs of", "metrics.cpus is 1")
    reviewer.settings = usual
    reviewer.submit()


def test_the_items_must_be_those_that_are_built(reviewer: Reviewer) -> None:
    planned = reviewer.plan()
    cost = planned["datasets"][0]
    cost["items"] += 1
    (last,) = [
        shard
        for trial in planned["trials"]
        for shard in trial["shards"]
        if (shard["dataset"], shard["stop"]) == (cost["name"], cost["items"] - 1)
    ]
    last["stop"] += 1
    reviewer.file.write_text(json.dumps(planned))
    with pytest.raises(UserError, match=f"13 items of dataset {cost['name']}, but 12 were built"):
        reviewer.submit()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.pop("trials"), "trials: it is missing"),
        (lambda t: t.update(schema="coordinate-eval/run@1"), "schema is 'coordinate-eval/run@1'"),
        (lambda t: t.pop("schema"), "it has no schema"),
        (lambda t: t.update(datasets=[]), "has no dataset"),
        (lambda t: t["nodes"].append(t["nodes"][0]), "node n1 is listed twice"),
        (lambda t: t["datasets"].append(t["datasets"][0]), "is listed twice"),
        (lambda t: t["trials"].append(t["trials"][0]), "trial n1-0 is listed twice"),
        (lambda t: t["nodes"].pop(), "no node n2"),
        (lambda t: t["trials"][0].update(gpus=2), "trial n1-0 has 2 GPUs, not 1"),
        (lambda t: t["trials"][0]["shards"].pop(), "in no shard"),
        (lambda t: t["trials"][1]["shards"].append(t["trials"][0]["shards"][0]), "more than one"),
        (lambda t: t["trials"][0]["shards"][0].update(stop=99), "is not within its"),
        (lambda t: t["trials"][0]["shards"][0].update(start=-1), "-1"),
        (lambda t: t["trials"][0]["shards"][0].update(dataset="x"), "dataset x"),
        (lambda t: t["trials"][0]["shards"][0].update(gpu_seconds="nan"), "nan is not a time"),
        (lambda t: t["stages"][0].update(seconds=-2), "-2.0 is not a time"),
        (lambda t: t["stages"].pop(), "node n2 has no stage"),
        (lambda t: t["estimate"].update(lower_bound_seconds=0), "is 0 seconds"),
        (lambda t: t["metric_jobs"].append(
            {"dataset": "tiny_code", "start": 0, "stop": 6, "cpus": 1, "seconds": 1}),
         "tiny_code 0-6"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be(
    reviewer: Reviewer, spoil: Callable[[dict[str, Any]], object], words: str
) -> None:
    planned = reviewer.plan()
    spoil(planned)
    reviewer.file.write_text(json.dumps(planned))
    reviewer.refused("plan.json", words, "--dry-run --json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b'{"schema": "coordinate-eval/plan@1", "trials": [', "is not JSON"),
        (b"\xff\xfe\x00", "line 1 is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "it has no schema"),
        (b"null", "it has no schema"),
        (b'{"schema": "coordinate-eval/plan@2"}', "plan@2"),
        (b'{"schema": "coordinate-eval/plan@1"}', "checkpoint: it is missing"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words):
        reviewed_plan.read(file)
    with pytest.raises(UserError, match="cannot be read"):
        reviewed_plan.read(tmp_path / "absent.json")


def test_options_that_go_together() -> None:
    for options in ([], ["--dry-run"]):
        with pytest.raises(UserError, match="CKPT, or --plan"):
            run_command(*options)
    for options in (["--html", "x"], ["--scripts", "x"], ["--what-if"]):
        with pytest.raises(UserError, match="add --dry-run"):
            run_command(*options)


def run_command(*options: str) -> None:
    """`coordinate-eval run OPTIONS`; raises its error."""
    done = CliRunner().invoke(app, ["run", *options])
    assert done.exception is not None
    raise done.exception


@given(COSTS, CAPACITIES)
@examples(60)
def test_what_the_planner_makes_is_sound_and_is_read_as_written(
    costs: list[Cost], capacity: Capacity
) -> None:
    made = reviewed_plan.PlanFile.of(plan_of(costs, capacity), metric_cpus=8, max_length=64)
    assert list(contradictions(made)) == []
    again = reviewed_plan.PlanFile.model_validate_json(made.model_dump_json(by_alias=True))
    assert again == made
    one = made.trials[0]
    fewer = one.model_copy(update={"shards": one.shards[1:]})
    without = made.model_copy(update={"trials": [fewer, *made.trials[1:]]})
    assert any("in no shard" in problem for problem in contradictions(without))
