"""Lines for a waiting person, and how often they come."""

import io
from pathlib import Path

from rich.console import Console
from tests.decisions import ROUND, TRIAL, facts, make_run
from tests.slurm_nodes import task_of

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.launch.foreground import Display
from coordinate_eval.coordinator.report.first_signal import FirstSignal, Interval, Signal
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Shard

ROUGH = Signal(
    items=4, of_items=40, tasks=1, of_tasks=1,
    estimates={"a": {"acc,none": Interval(value=0.25, stderr=0.1, low=0.05, high=0.45)}},
)  # fmt: skip


def test_off_a_terminal_nothing_is_said_twice(tmp_path: Path) -> None:
    shown = io.StringIO()
    with Display(RunDir(tmp_path), make_run(), Console(file=shown)) as display:
        for _ in range(3):
            display.show(facts())
        display.tell("the scheduler does not answer")
        display.tell("the scheduler does not answer")
        display.show(facts(unscored=1))
    lines = shown.getvalue().splitlines()
    assert len(lines) == 3
    assert "0 of 2 datasets scored" in lines[0]
    assert "1 of 2 datasets scored" in lines[2]


def test_who_waits_is_told_of_a_limit_that_may_never_let_a_job_start(tmp_path: Path) -> None:
    waits = task_of("7_0", "PENDING", "AssocGrpGRES", "", TRIAL[0])
    _files.write_record(RunDir(tmp_path).round(0), ROUND)
    shown = io.StringIO()
    with Display(RunDir(tmp_path), make_run(), Console(file=shown, width=500)) as display:
        for _ in range(2):
            display.show(facts(tasks=[waits]))
    (line,) = shown.getvalue().splitlines()
    assert "job 7: a limit on what all jobs of a user, account or QOS have together" in line
    assert "it waits for ever where one job alone asks for more" in line


def test_the_first_signal_is_shown_once_when_all_of_it_is_there(tmp_path: Path) -> None:
    shards = [
        Shard(dataset="a", start=0, stop=4, gpu_seconds=1, metric_cpu_seconds=0, signal=True),
        Shard(dataset="a", start=4, stop=40, gpu_seconds=9, metric_cpu_seconds=0),
    ]
    shown, run_dir = io.StringIO(), RunDir(tmp_path)
    with Display(run_dir, make_run(shards=shards), Console(file=shown, width=100)) as display:
        display.show(facts())
        known = FirstSignal(run="r", seconds=0, pending=["a"])
        _files.write_record(run_dir.first_signal, known)
        display.show(facts())
        assert "first signal" not in shown.getvalue()
        settled = known.model_copy(update={"datasets": {"a": ROUGH}, "pending": []})
        _files.write_record(run_dir.first_signal, settled)
        display.show(facts())
        display.show(facts())
    assert shown.getvalue().count("first signal") == 1
    assert "0.0500 … 0.4500" in shown.getvalue()
    assert "4 of 40" in shown.getvalue()
