"""The command that is called after a run."""

import shlex
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.runs import until

from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import settings_of_judge
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.after_run import AfterRun


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


def test_a_command_that_fails_is_named_with_its_log(run_dir: RunDir) -> None:
    said = called(run_dir, run_with("sh", "-c", "exit 3"))
    assert "exit status 3" in said
    assert "after_run.log" in said


def test_a_command_that_is_not_there_is_named(run_dir: RunDir) -> None:
    assert "'/no/such program'" in called(run_dir, run_with("/no/such program"))


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


def test_the_run_of_a_judge_calls_nothing() -> None:
    assert settings_of_judge(Settings(after_run=["true"])).after_run == []
