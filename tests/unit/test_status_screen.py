"""What people read of a run's state."""

import io
from typing import Any

import pytest
from rich.console import Console

from coordinate_eval.coordinator.cli.inquire import status_screen
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.records import JudgeProgress


def screen(
    phase: Phase,
    states: dict[str, str],
    rescored: dict[str, Any] | None = None,
    judge: JudgeProgress | None = None,
    **more: Any,
) -> str:
    """The screen of a run without trials, whose datasets are in these states."""
    rows: dict[str, Any] = {
        name: {
            "state": state,
            "shards": 1,
            "shards_done": 1,
            "items": 9,
            "of_items": None,
            "score": None,
            "warnings": [],
        }
        for name, state in states.items()
    }
    shown: dict[str, Any] = {
        "after_run": None, "run": "r", "dir": "/runs/r", "state": "x", "phase": phase.value,
        "detail": "",
        "checkpoint": "/ckpt", "suite": "s", "requests": 0, "portions": 0,
        "judge": judge.model_dump() if judge else None,
        "trials_by_state": {}, "elapsed_seconds": 1.0, "left_seconds": None, "datasets": rows,
        "rescored": rescored, "first_signal": None, "jobs": [], "reasons": [], "avoided": [],
        "note": "", "next": "coordinate-eval resume r", "part": "", "aggregates": {},
        "left_out": {}, **more,
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    status_screen.show(shown, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_was_given_up_can_be_left_out() -> None:
    said = screen(Phase.INCOMPLETE, {"a": "scored", "b": "failed", "c": "failed"})
    assert "ask for it with --skip b,c;" in said


@pytest.mark.parametrize(
    ("phase", "states"),
    [
        (Phase.INCOMPLETE, {"a": "scored", "b": "running"}),
        (Phase.INCOMPLETE, {"a": "failed", "b": "failed"}),
        (Phase.RUNNING, {"a": "scored", "b": "failed"}),
    ],
)
def test_there_may_be_nothing_to_leave_out(phase: Phase, states: dict[str, str]) -> None:
    assert "--skip" not in screen(phase, states)


def test_a_rescoring_that_changed_nothing_says_so() -> None:
    found: dict[str, Any] = {
        "dir": "/runs/[old]", "changed": {}, "not_scored_before": [], "judges": {},
    }  # fmt: skip
    said = screen(Phase.COMPLETE, {"a": "scored"}, found)
    assert "no score has changed since /runs/[old]" in said
    assert "difference" not in said
    found |= {"not_scored_before": ["a"], "judges": {"a": "another judge"}}
    said = screen(Phase.COMPLETE, {"a": "scored"}, found)
    assert "not scored before" in said
    assert "a: another judge" in said


def test_odd_answers_of_a_judge_are_told_while_it_is_asked() -> None:
    odd = {"cut": 12, "refused": 9, "thinking_unended": 11, "without_temperature": 100}
    asked = JudgeProgress(state="asking", answered=60, kept=40, left=5, odd=odd, updated=0.0)
    said = " ".join(screen(Phase.RUNNING, {"a": "running"}, judge=asked).split())
    assert (
        "60 questions answered, 40 known from earlier runs, 5 waiting, 0 tokens; of its answers "
        "12 cut at their limit of tokens, 11 with thinking that does not end, "
        "100 without temperature"
    ) in said


@pytest.mark.parametrize(("nodes", "said"), [(0, "8 waiting\n"), (2, "8 waiting, on 2 nodes\n")])
def test_waiting_trials_are_on_the_nodes_that_are_known(nodes: int, said: str) -> None:
    assert said in screen(Phase.WAITING, {}, trials_by_state={"waiting": 8}, nodes=nodes)
