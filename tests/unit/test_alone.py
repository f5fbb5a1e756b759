"""One program at a time on a node, where others could decide its verdict."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from coordinate_eval.coordinator.workers.metric import alone_on_this_node, verdict
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox, SandboxError
from coordinate_eval.records import Answer, Question, QuestionKind


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_one_process_at_a_time(tmp_path: Path) -> None:
    inside = tmp_path / "inside"

    def work() -> None:
        for _ in range(50):
            with alone_on_this_node(tmp_path):
                inside.mkdir()  # fails if another process is inside
                inside.rmdir()

    children = [in_child(work) for _ in range(4)]
    assert [status_of(child) for child in children] == [0] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def work() -> None:
        with alone_on_this_node(tmp_path):
            os.write(writer, b"x")
            signal.pause()

    child = in_child(work)
    assert os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    assert status_of(child) == -signal.SIGKILL
    with alone_on_this_node(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def plant_link(path: Path) -> None:
    path.symlink_to("elsewhere")


def plant_folder(path: Path) -> None:
    path.mkdir()


def plant_pipe(path: Path) -> None:
    os.mkfifo(path)


def plant_file_of_another(path: Path) -> None:
    path.touch()
    os.chown(path, 65534, 65534)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")


@pytest.mark.parametrize(
    "plant",
    [plant_link, plant_folder, plant_pipe, pytest.param(plant_file_of_another, marks=needs_root)],
)
def test_what_others_plant_is_neither_used_nor_waited_for(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    path = tmp_path / f"coordinate-eval-{os.getuid()}.alone"
    plant(path)
    before = path.lstat()
    with alone_on_this_node(tmp_path):
        pass
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_the_folder_nobody_waits(tmp_path: Path) -> None:
    with alone_on_this_node(tmp_path / "none"):
        pass


class Scripted:
    """A sandbox that gives these results one after the other, and a lock that it looks at."""

    def __init__(self, *results: str) -> None:
        self._results = list(results)
        self.alone = False
        self.runs: list[bool] = []
        """For each run, whether it was alone."""

    def run_many(self, questions: Iterable[Question], workers: int) -> Iterator[Answer]:
        for question in questions:
            self.runs.append(self.alone)
            result = self._results.pop(0)
            if result == "no start":
                raise SandboxError(result)
            yield Answer(id=question.id, passed=result == "passed", result=result, seconds=1.0)

    @contextmanager
    def lock(self) -> Iterator[None]:
        self.alone = True
        yield
        self.alone = False


QUESTION = Question(id="q", kind=QuestionKind.PROGRAM, content="", timeout_seconds=1.0)


@pytest.mark.parametrize(
    ("results", "expected", "runs"),
    [
        (["passed"], "passed", [False]),
        (["failed: AssertionError"], "failed: AssertionError", [False]),
        (["timed out", "passed"], "passed", [False, True]),
        (["timed out", "timed out"], "timed out", [False, True]),
        (["failed: MemoryError", "failed: ValueError"], "failed: ValueError", [False, True]),
        (["no start", "passed"], "passed", [False, True]),
    ],
)
def test_a_verdict_that_scarcity_decided_is_asked_for_again_alone(
    results: list[str], expected: str, runs: list[bool]
) -> None:
    sandbox = Scripted(*results)
    answer = verdict(cast("Sandbox", sandbox), QUESTION, suspect=False, alone=sandbox.lock)
    assert answer.result == expected
    assert sandbox.runs == runs


def test_a_program_that_ended_a_job_runs_alone_at_once() -> None:
    sandbox = Scripted("passed")
    assert verdict(cast("Sandbox", sandbox), QUESTION, suspect=True, alone=sandbox.lock).passed
    assert sandbox.runs == [True]


def test_a_sandbox_that_never_starts_judges_nothing() -> None:
    sandbox = Scripted("no start", "no start")
    with pytest.raises(SandboxError):
        verdict(cast("Sandbox", sandbox), QUESTION, suspect=False, alone=sandbox.lock)
