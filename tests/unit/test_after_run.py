"""The command that is called after a run."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.runs import until
from tests.shown_runs import submitted_run
from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.upkeep import doctor
from coordinate_eval.coordinator.doctor.findings import State
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import HookEnd, Run
from coordinate_eval.coordinator.supervisor.after_run import AfterRun, with_our_command


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "a 'run'\nof mine")
    made.root.mkdir()
    return made


def run_with(*command: str) -> Run:
    return make_run(settings=Settings(after_run=list(command)))


def called(run_dir: RunDir, run: Run, limit_seconds: float = 600.0) -> str:
    """Call the command of a run, and return what went wrong."""
    with AfterRun(run_dir, run, limit_seconds) as after_run:
        after_run.begin()
        return after_run.wait()


def log(run_dir: RunDir) -> str:
    return (run_dir.logs / "after_run.log").read_text()


def test_without_a_command_nothing_is_called(run_dir: RunDir) -> None:
    assert called(run_dir, run_with()) == ""
    assert list(run_dir.root.iterdir()) == []


def test_the_run_directory_is_the_last_argument(run_dir: RunDir) -> None:
    assert called(run_dir, run_with("printf", "[%s]", "two words")) == ""
    assert log(run_dir) == f"[two words][{run_dir.root}]"


def test_output_of_several_calls_stays(run_dir: RunDir) -> None:
    for word in ("once ", "twice "):
        called(run_dir, run_with("sh", "-c", f"echo {word} >&2"))
    assert log(run_dir).split() == ["once", "twice"]


@pytest.mark.parametrize(
    ("script", "problem", "status", "last"),
    [
        ("exit 3", "ended with exit status 3", 3, ""),
        ("echo begun; echo 'ValueError: no\033[31m key' >&2; echo; exit 1",
         "ended with exit status 1", 1, "ValueError: no�[31m key"),
        ("echo killed by; kill -TERM $$", "was ended by SIGTERM", -15, "killed by"),
        ("head -c 9000 /dev/zero | tr '\\0' x; exit 2", "ended with exit status 2", 2, None),
        ("echo fine", "", 0, ""),
    ],
)  # fmt: skip
def test_how_a_command_ended_is_kept(
    run_dir: RunDir, script: str, problem: str, status: int, last: str | None
) -> None:
    said = called(run_dir, run_with("sh", "-c", script))
    end = _files.read_record(run_dir.hook("after_run"), HookEnd)
    assert (end.problem, end.exit_status) == (problem, status)
    assert end.last_line == last if last is not None else len(end.last_line) < 600
    assert said == end.words
    assert bool(said) is bool(problem)
    if problem:
        assert problem in said
        assert "after_run.log" in said


def test_the_last_call_counts(run_dir: RunDir) -> None:
    assert called(run_dir, run_with("false"))
    after_run = AfterRun(run_dir, run_with("true"))
    with after_run:
        after_run.begin()
        assert not run_dir.hook("after_run").exists()
        assert after_run.wait() == ""
    assert _files.read_record(run_dir.hook("after_run"), HookEnd).problem == ""


def test_a_command_that_is_not_there_is_named(run_dir: RunDir) -> None:
    said = called(run_dir, run_with("/no/such program"))
    assert said.startswith("after_run cannot be called: '/no/such program': No such file")
    assert _files.read_record(run_dir.hook("after_run"), HookEnd).words == said


def test_our_own_command_is_found_and_python_stays_the_users(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job of a run that cron has started, where PATH has no virtual environment."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for place, name in ((theirs, "python3"), (ours, "python3"), (ours, "coordinate-eval")):
        place.mkdir(exist_ok=True)
        (place / name).write_text(f"#!/bin/sh\necho {place.name} {name}\n")
        (place / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ours / "python3"))
    monkeypatch.setenv("PATH", f"{theirs}:/usr/bin:/bin")
    assert called(run_dir, run_with("sh", "-c", "python3; coordinate-eval")) == ""
    assert log(run_dir) == "theirs python3\nours coordinate-eval\n"
    assert with_our_command({"PATH": f"{ours}:/bin"})["PATH"].split(":")[:2] == [str(ours), "/bin"]


def test_people_are_told(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run_dir = submitted_run(runs)
    settings = Settings(runs_dir=str(runs))
    assert list(doctor.hooks(settings)) == []
    run_dir.cancelled.touch()
    failed = HookEnd(problem="ended with exit status 1", exit_status=1, last_line="E", log="/l")
    _files.write_record(run_dir.hook("after_run"), failed)
    words = "after_run ended with exit status 1: E; see /l"

    def called(*args: str) -> Result:
        return CliRunner().invoke(app, args, env={"COORDINATE_EVAL_RUNS_DIR": str(runs)})

    told = called("status", "r")
    assert (told.exit_code, words in told.stdout) == (1, True)
    assert json.loads(called("status", "r", "--json").stdout)["after_run"] == failed.model_dump()
    assert "cancelled, after_run failed" in called("runs").stdout
    assert json.loads(called("runs", "--json").stdout)[0]["after_run"] == words
    (found,) = doctor.hooks(settings)
    assert found.state is State.WARNING
    assert f"it failed in 1 of 1 run, last in r: {words}" in found.found
    assert str(run_dir.root) in found.do
    _files.write_record(run_dir.hook("after_run"), HookEnd(exit_status=0, log="/l"))
    (found,) = doctor.hooks(settings)
    assert found.state is State.OK


def test_a_command_that_does_not_end_is_killed_with_what_it_started(run_dir: RunDir) -> None:
    started = run_dir.root / "started"
    script = f"sleep 1000 & echo $! >{shlex.quote(str(started))}; wait"
    limit = 0.1
    while not started.exists() or not started.read_text():
        limit *= 2  # this machine is busy: the shell has to get so far
        said = called(run_dir, run_with("sh", "-c", script), limit)
        assert "did not end" in said
    child = int(started.read_text())
    until(lambda: not _lives(child), "the end of what it started")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_has_nothing_to_read(run_dir: RunDir) -> None:
    assert called(run_dir, run_with("sh", "-c", "cat; echo ended")) == ""
    assert log(run_dir) == "ended\n"


def test_where_no_run_has_ended_nothing_is_called(run_dir: RunDir) -> None:
    with AfterRun(run_dir, run_with("echo", "ended")) as after_run:
        assert after_run.wait() == ""
    assert list(run_dir.root.iterdir()) == []


def test_an_error_in_its_supervisor_ends_it(run_dir: RunDir) -> None:
    after_run = AfterRun(run_dir, run_with("sh", "-c", "echo $$; exec sleep 1000"))
    with pytest.raises(KeyboardInterrupt), after_run:
        after_run.begin()
        until(lambda: log(run_dir), "its beginning")
        raise KeyboardInterrupt
    until(lambda: not _lives(int(log(run_dir))), "its end")
