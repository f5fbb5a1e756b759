"""One answer of squeue serves all processes of a user that look, and none relies on it."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.errors import ClusterSilent
from coordinate_eval.slurm import shared_queue
from coordinate_eval.slurm.shared_queue import (
    LEFT_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_BYTES,
    SharedQueue,
)

RUN, OTHER = "ce-a.1-", "ce-b.2-"
MINE, THEIRS = f"{RUN}super1", f"{OTHER}super1"


class Slurm:
    """What squeue prints, and how often it is asked."""

    def __init__(self) -> None:
        self.tasks = {("1", MINE): "RUNNING", ("2", THEIRS): "RUNNING"}
        self.calls = 0
        self.silent = False

    def ask(self) -> str:
        self.calls += 1
        if self.silent:
            raise ClusterSilent("no answer")
        return "".join(
            f"\x1e{job_id}|{state}|None|n1|{name}\n" for (job_id, name), state in self.tasks.items()
        )


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def process(tmp_path: Path, slurm: Slurm) -> Callable[[], SharedQueue]:
    """Makes processes that look, each of which has looked once."""

    def make() -> SharedQueue:
        queue = SharedQueue(tmp_path / "queue", "c", slurm.ask)
        assert names(queue.look("ce-", patient=True)) == {name for _, name in slurm.tasks}
        return queue

    return make


def names(tasks: list[TaskStatus] | None) -> set[str]:
    assert tasks is not None
    return {task.name for task in tasks}


def test_one_asks_and_the_others_read(slurm: Slurm, process: Callable[[], SharedQueue]) -> None:
    asker, *others = [process() for _ in range(5)]
    for queue in (*others, asker):
        queue.look("ce-", patient=True)
    slurm.tasks["3", f"{RUN}trial0-n1"] = "PENDING"
    slurm.calls = 0
    asker.look(RUN, patient=False)
    if not slurm.calls:  # that was the answer of another
        asker.look(RUN, patient=False)
    assert slurm.calls == 1
    for queue in others:
        assert names(queue.look(RUN, patient=True)) == {MINE, f"{RUN}trial0-n1"}
    assert slurm.calls == 1


def test_an_answer_is_new_once(slurm: Slurm, process: Callable[[], SharedQueue]) -> None:
    """Else nobody would ever ask again."""
    first, second = process(), process()
    assert first.look(RUN, patient=True) is not None  # of the second
    calls = slurm.calls
    first.look(RUN, patient=True)
    assert slurm.calls == calls + 1
    second.look(RUN, patient=True)
    assert slurm.calls == calls + 1


def test_a_process_that_is_alone_always_asks(
    slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    queue = process()
    for _ in range(5):
        assert names(queue.look(RUN, patient=True)) == {MINE}
    assert slurm.calls == 6


def test_a_submission_is_in_every_answer_that_is_believed(
    slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)
    other.look("ce-", patient=False)  # asked before the submission
    one.expect("7", f"{RUN}trial0-n1")
    slurm.tasks["7", f"{RUN}trial0-n1"] = "PENDING"
    assert one.look(RUN, patient=True) is None
    other.look("ce-", patient=False)  # asked after it
    calls = slurm.calls
    assert f"{RUN}trial0-n1" in names(one.look(RUN, patient=True))
    assert slurm.calls == calls


def test_one_that_cannot_wait_asks_in_place_of_believing_an_older_answer(
    slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)
    other.look("ce-", patient=False)
    one.expect("7", f"{RUN}trial0-n1")
    slurm.tasks["7", f"{RUN}trial0-n1"] = "PENDING"
    assert f"{RUN}trial0-n1" in names(one.look("ce-", patient=False))


def test_a_job_that_lived_is_missing_only_in_an_answer_of_ones_own(
    tmp_path: Path, slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    """Another cluster of the same name lists none of this one's jobs."""
    queue = process()
    elsewhere = Slurm()
    elsewhere.tasks = {("1", "ce-z.9-super1"): "RUNNING"}
    SharedQueue(tmp_path / "queue", "c", elsewhere.ask).look("ce-", patient=False)
    assert queue.look(RUN, patient=True) is None
    del slurm.tasks["1", MINE]
    assert queue.look(RUN, patient=True) == []  # it asked: nobody else has since


def test_after_a_submission_without_an_answer_nobody_elses_is_believed(
    slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)
    other.look("ce-", patient=False)
    one.distrust()
    slurm.tasks["7", f"{RUN}trial0-n1"] = "PENDING"
    assert f"{RUN}trial0-n1" in names(one.look(RUN, patient=True))


def test_how_a_job_ended_is_told(slurm: Slurm, process: Callable[[], SharedQueue]) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)
    slurm.tasks["1", MINE] = "NODE_FAIL"
    other.look("ce-", patient=False)
    found = one.look(RUN, patient=True)
    assert found is not None
    assert [task.state for task in found] == [State.ENDED]


def test_silence_is_everybodys_own(slurm: Slurm, process: Callable[[], SharedQueue]) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)
    slurm.silent = True
    for queue in (one, other):
        with pytest.raises(ClusterSilent):
            queue.look(RUN, patient=True)
    slurm.silent = False
    assert one.look(RUN, patient=True)
    assert other.look(RUN, patient=True)


HOLD = """
import fcntl, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
time.sleep(1e6)
"""


def test_a_held_lock_saves_the_patient_a_call_and_is_free_when_its_holder_is_killed(
    tmp_path: Path, slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    queue = process()
    queue.look(RUN, patient=True)
    lock = tmp_path / "queue" / "c.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        calls = slurm.calls
        assert queue.look(RUN, patient=True) is None
        assert slurm.calls == calls
        assert queue.look("ce-", patient=False)  # not for ever
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert queue.look(RUN, patient=True)


def test_without_locks_the_file_still_serves_and_the_impatient_ask(
    slurm: Slurm, process: Callable[[], SharedQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)

    def refuse(*_: object) -> None:
        raise OSError("No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert one.look(RUN, patient=True) is None
    other.look("ce-", patient=False)
    calls = slurm.calls
    assert names(one.look(RUN, patient=True)) == {MINE}
    assert slurm.calls == calls


def test_what_killed_writers_left_is_removed_by_the_next_process_that_asks(
    tmp_path: Path, slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    process()
    folder = tmp_path / "queue"
    names_of_others = {"c.txt", "c.lock", ".c.txt.tmp", ".d.txt.0123456789abcdef.tmp", "notes"}
    young, old = ".c.txt.0123456789abcdef.tmp", ".c.txt.fedcba9876543210.tmp"
    for name in {*names_of_others, young, old} - {"c.txt"}:
        (folder / name).write_text("half an answer")
    written = (folder / "c.txt").stat().st_mtime
    for name in {*names_of_others, old} - {"c.txt"}:
        os.utime(folder / name, (0, written - LEFT_SECONDS - 60))
    os.utime(folder / young, (0, written - LEFT_SECONDS + 600))
    process()
    assert {path.name for path in folder.iterdir()} == {*names_of_others, young}


FAILED = f"\x1e1|FAILED|None|n1|{MINE}\n"


def _garbage(file: Path) -> None:
    file.write_bytes(os.urandom(1000))


def _other_cluster(file: Path) -> None:
    file.write_text(f"coordinate-eval-queue@1 d 1\n\x1e1|RUNNING|None|n1|{MINE}\n")


def _torn(file: Path) -> None:
    file.write_text(f"coordinate-eval-queue@1 c 1 17\n\x1e1|RUNNING|None|n1|{MINE}")


def _cut(file: Path) -> None:
    """Where a record ends, so that what is left looks whole."""
    file.write_text(f"coordinate-eval-queue@1 c 1 900\n\x1e1|FAILED|None|n1|{MINE}\n")


def _huge(file: Path) -> None:
    file.write_text(f"coordinate-eval-queue@1 c 1 {len(FAILED)}\n{FAILED}")
    os.truncate(file, MOST_BYTES + 1000)


def _writable(file: Path) -> None:
    file.write_text(f"coordinate-eval-queue@1 c 1 {len(FAILED)}\n{FAILED}")
    file.chmod(0o666)


def _link(file: Path) -> None:
    real = file.with_name("real")
    real.write_text(f"coordinate-eval-queue@1 c 1 {len(FAILED)}\n{FAILED}")
    file.unlink()
    file.symlink_to(real)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _nothing(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    "plant", [_garbage, _other_cluster, _torn, _cut, _huge, _writable, _link, _pipe, _nothing]
)
def test_what_is_no_answer_of_ones_own_decides_nothing(
    tmp_path: Path,
    slurm: Slurm,
    process: Callable[[], SharedQueue],
    plant: Callable[[Path], None],
) -> None:
    queue = process()
    plant(tmp_path / "queue" / "c.txt")
    found = queue.look(RUN, patient=False)
    assert found is not None
    assert [task.state for task in found] == [State.RUNNING]
    assert slurm.calls == 2


def test_what_is_planted_would_decide_if_it_were_ones_own(
    tmp_path: Path, slurm: Slurm, process: Callable[[], SharedQueue]
) -> None:
    queue = process()
    text = f"coordinate-eval-queue@1 c 1 {len(FAILED)}\n{FAILED}"
    (tmp_path / "queue" / "c.txt").write_text(text)
    found = queue.look(RUN, patient=False)
    assert found is not None
    assert [task.state for task in found] == [State.ENDED]
    assert slurm.calls == 1


def test_after_a_standstill_a_process_asks_for_itself(tmp_path: Path, slurm: Slurm) -> None:
    now = 0.0
    one, other = (SharedQueue(tmp_path / "queue", "c", slurm.ask, lambda: now) for _ in range(2))
    one.look("ce-", patient=False)
    slurm.tasks["1", MINE] = "PENDING"
    other.look("ce-", patient=False)
    slurm.tasks["1", MINE] = "RUNNING"
    now = LONGEST_PAUSE_SECONDS + 1
    found = one.look(RUN, patient=True)
    assert found is not None
    assert [task.state for task in found] == [State.RUNNING]


def test_a_file_system_that_does_not_answer_for_its_locks_holds_nobody_up(
    slurm: Slurm, process: Callable[[], SharedQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, server, asked = process(), threading.Event(), []

    def wait(*_: object) -> None:
        asked.append(threading.current_thread())
        server.wait()

    monkeypatch.setattr(shared_queue, "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(fcntl, "flock", wait)
    for _ in range(3):
        assert names(queue.look(RUN, patient=False)) == {MINE}
    assert len(asked) == 1
    server.set()
    asked[0].join()


def test_another_users_file_is_not_read(
    tmp_path: Path,
    slurm: Slurm,
    process: Callable[[], SharedQueue],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = process(), process()
    one.look("ce-", patient=True)
    slurm.tasks["1", MINE] = "FAILED"
    other.look("ce-", patient=False)
    slurm.tasks["1", MINE] = "RUNNING"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = one.look(RUN, patient=False)
    assert found is not None
    assert [task.state for task in found] == [State.RUNNING]


@pytest.mark.parametrize("cluster", ["", "../c", "c/d", "-c", "c" * 200])
def test_without_a_usable_name_of_the_cluster_nothing_is_shared(
    tmp_path: Path, slurm: Slurm, cluster: str
) -> None:
    queue = SharedQueue(tmp_path / "queue", cluster, slurm.ask)
    assert queue.look(RUN, patient=True)
    assert queue.look(RUN, patient=True) is None  # only when it is due
    assert queue.look(RUN, patient=False)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_calls_but_no_more_than_without_it(
    tmp_path: Path, slurm: Slurm
) -> None:
    (tmp_path / "queue").write_text("in its place")
    queue = SharedQueue(tmp_path / "queue", "c", slurm.ask)
    assert queue.look(RUN, patient=False)
    assert queue.look(RUN, patient=True) is None
    assert queue.look(RUN, patient=False)
    assert slurm.calls == 2


def test_only_the_user_can_enter_the_folder(
    tmp_path: Path, process: Callable[[], SharedQueue]
) -> None:
    process().look(RUN, patient=True)
    assert (tmp_path / "queue").stat().st_mode & 0o777 == 0o700
