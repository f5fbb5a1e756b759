"""Reading a plan file: it is run as a dry run printed it, or refused."""

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
from coordinate_eval.coordinator.planning import reviewed_plan
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, Plan
from coordinate_eval.errors import UserError


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["trials"][0]["shards"][0].update(stop=99), "digest"),
        (lambda t: t.pop("digest"), "digest"),
        (lambda t: t.pop("trials"), "trials: it is missing"),
        (lambda t: t.update(schema="coordinate-eval/run@1"), "schema: "),
    ],
)
def test_a_changed_plan_is_refused(
    reviewer: Reviewer, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    planned = reviewer.plan()
    change(planned)
    reviewer.file.write_text(json.dumps(planned))
    reviewer.refused("plan.json", words, "--dry-run --json")


def test_a_plan_may_be_written_in_another_layout(reviewer: Reviewer) -> None:
    planned = reviewer.plan()
    reviewer.file.write_text(json.dumps(planned, sort_keys=True))
    reviewer.submit()


def test_the_items_must_be_those_that_are_built(reviewer: Reviewer) -> None:
    reviewer.plan()
    plan = reviewed_plan.read(reviewer.file)
    cost = plan.datasets[0]
    more = [cost.model_copy(update={"items": cost.items + 1}), *plan.datasets[1:]]
    other = reviewed_plan.sealed(plan.model_copy(update={"datasets": more}))
    reviewer.file.write_text(other.model_dump_json(by_alias=True))
    with pytest.raises(UserError, match=f"{cost.name}: the plan has 13 items, but 12 were built"):
        reviewer.submit()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"schema": "coordinate-eval/plan@1", "trials": [',
        b"[" * 100_000,
        b"[1, 2]",
        b"null",
        b'{"schema": "coordinate-eval/plan@2"}',
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match="is not a coordinate-eval/plan@1"):
        reviewed_plan.read(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="line 1 is not UTF-8"):
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
def test_what_the_planner_makes_is_read_as_written(costs: list[Cost], capacity: Capacity) -> None:
    made = reviewed_plan.sealed(plan_of(costs, capacity))
    again = Plan.model_validate_json(made.model_dump_json(by_alias=True))
    assert reviewed_plan.sealed(again) == made
