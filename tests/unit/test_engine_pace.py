"""What the engines of a run show of their start and of their pace."""

from typing import Any

import pytest
from tests.decisions import SPANS, make_run, stage

from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.coordinator.supervisor.gather import pace, ready_seconds


def trial(**times: Any) -> TrialProgress:
    values = {"trial": "n1-0", "task": "1", "node": "n1", "state": "running", "started": 100.0}
    return TrialProgress.model_validate({**values, "updated": 200.0, **times}, extra="forbid")


def test_the_start_is_as_seen_from_the_copy_on_else_as_predicted() -> None:
    run = make_run(copy_seconds=30, engine_start_seconds=40)
    assert ready_seconds(run, {}, {}) == 70
    assert ready_seconds(run, {0: [trial()]}, {}) == 70
    seen = [trial(running=130.0), trial(running=140.0), trial(running=900.0)]
    assert ready_seconds(run, {0: seen}, {}) == 40
    copied = stage(1, 1, 1, "ready").model_copy(update={"started": 90.0})
    assert ready_seconds(run, {0: seen}, {(0, "n1"): copied}) == 50


def test_the_pace_counts_from_the_first_response_and_work_in_hand_by_half() -> None:
    run = make_run()  # three shards of a second
    assert pace(run, {0: [trial()]}, SPANS, []) is None
    answering = {0: [trial(ready=198.0)]}
    assert pace(run, answering, SPANS, []) == 1.0
    assert pace(run, answering, SPANS[1:], []) == pytest.approx(2)
    assert pace(run, answering, SPANS[1:], SPANS[1:2]) == pytest.approx(2 / 1.5)
    slow = {0: [trial(ready=110.0)]}
    assert pace(run, slow, SPANS[1:], []) == 10.0
