"""`Saver` in one process: what it saves, what it deletes, and what training hears of errors."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import sides

from coordinate_eval.checkpointing import RESUME_FROM, SaveError, Saver, latest
from coordinate_eval.checkpointing.saves import call_good
from coordinate_eval.coordinator.inputs.checkpoints import reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, look

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.checkpoint")


def state(value: float = 0.0) -> dict[str, Any]:
    return {
        "model": {
            "a": torch.full((40, 30), value),
            "b": torch.arange(15).reshape(3, 5).to(torch.bfloat16).T + value,
            "c": torch.tensor(value),
            "d": torch.zeros(0),
        },
        "step": int(value),
        "lists": ["x", {"y": int(value)}],
        "generator": torch.get_rng_state(),
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return bool(torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def save_all(folder: Path, *numbers: int, **given: Any) -> None:
    with Saver(folder, **given) as saver:
        for number in numbers:
            saver.save(number, state(number))


@contextmanager
def small_files(most: int = 3000) -> Iterator[None]:
    """A disk that takes no larger files."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


def test_a_save_is_the_state_at_the_call(tmp_path: Path) -> None:
    with Saver(tmp_path / "new" / "ckpts") as saver:
        assert saver.load(state()) is None
        changed = state(1)
        for step in (1, 2, 3, 4):
            saver.save(step, changed)
            for tensor in changed["model"].values():
                tensor += 1
            changed["step"] += 1
            changed["lists"][1]["y"] += 1
    for step in (1, 2, 3, 4):
        loaded = state()
        os.environ[RESUME_FROM] = str(tmp_path / "new" / "ckpts" / f"step-{step}")
        try:
            with Saver(tmp_path / "new" / "ckpts") as saver:
                assert saver.load(loaded) == step
        finally:
            del os.environ[RESUME_FROM]
        assert same(loaded, state(step))


def test_objects_with_a_state_are_asked_for_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    save_all(tmp_path, 1)
    with Saver(tmp_path) as saver:
        saver.save(2, {"model": model})
        weight = model.weight.detach().clone()
        saver.wait()
        torch.nn.init.zeros_(model.weight)
        assert saver.load({"model": model}) == 2
    assert torch.equal(model.weight, weight)


def test_tensors_may_change_from_save_to_save(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        saver.save(1, {"a": torch.ones(3)})
        saver.save(2, {"a": torch.ones(9), "b": torch.ones(200, 200), "c": {"d": 1}})
        saver.save(3, {"b": torch.ones(2)})
        loaded = {"b": torch.zeros(2)}
        assert saver.load(loaded) == 3
    assert torch.equal(loaded["b"], torch.ones(2))


def test_what_is_saved_can_be_evaluated(tmp_path: Path) -> None:
    save_all(tmp_path, 7)
    sides(tmp_path / "step-7")
    (tmp_path / ".step-8.0123456789abcdef.tmp").mkdir()
    found = inspect(tmp_path / "step-7")
    source = reading.source(found)
    assert torch.equal(source.read("a"), torch.full((40, 30), 7.0))
    assert [saved.path.name for saved in look(tmp_path, Pattern(None))] == ["step-7"]


def test_an_error_of_the_disk_is_heard_at_the_next_save(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    saver.save(1, state(1))
    saver.wait()
    with small_files():
        saver.save(2, state(2))
        with pytest.raises(SaveError) as caught:
            saver.wait()
    assert "step 2 was not saved" in str(caught.value)
    assert "File too large" in str(caught.value)
    assert str(tmp_path / "step-1") in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".saver.json", "step-1"]
    with small_files():
        saver.save(3, state(3))
        while not saver._jobs[-1].done.done():
            time.sleep(0.001)
    with pytest.raises(SaveError, match=r"step 3 was not saved.*Step 4 is being saved"):
        saver.save(4, state(4))
    saver.close()
    assert steps(tmp_path) == [4]
    with pytest.raises(SaveError, match="closed"):
        saver.save(5, state(5))


def test_a_state_that_cannot_be_copied_is_an_error(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        with pytest.raises(SaveError, match="pickle"):
            saver.save(1, {"a": torch.ones(2), "f": lambda: None})
        saver.save(2, {"a": torch.ones(2)})
    assert steps(tmp_path) == [2]


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/saves")):
        with pytest.raises(SaveError, match=f"no saves in {folder}"):
            Saver(folder)
    for given in ({"every": 0}, {"keep": 0}, {"every": True}, {"keep": 1.5}):
        with pytest.raises(ValueError, match="whole number"):
            Saver(tmp_path, **given)


def test_the_last_saver_of_a_folder_alone_may_write(tmp_path: Path) -> None:
    first = Saver(tmp_path)
    first.save(1, state(1))
    first.wait()
    second = Saver(tmp_path)
    first.save(2, state(2))
    with pytest.raises(SaveError, match="belongs to another Saver"):
        first.close()
    second.save(2, state(2))
    second.close()
    assert steps(tmp_path) == [1, 2]


def test_one_step_is_saved_once(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        saver.save(1, state(1))
        saver.wait()
        made = (tmp_path / "step-1").stat().st_ino
        saver.save(1, state(1))
        saver.wait()
        assert (tmp_path / "step-1").stat().st_ino == made


def test_after_training_went_back_its_saves_are_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_all(tmp_path, 100, 200, 300)
    monkeypatch.setenv(RESUME_FROM, str(tmp_path / "step-100"))
    with Saver(tmp_path, keep=2) as saver:
        assert saver.load(state()) == 100
        saver.save(200, state(-200))
        saver.wait()
        assert latest(tmp_path) == tmp_path / "step-200"
        assert steps(tmp_path) == [100, 200]  # not 300, which is of the course that was left
    monkeypatch.delenv(RESUME_FROM)
    loaded = state()
    with Saver(tmp_path) as saver:
        assert saver.load(loaded) == 200
    assert same(loaded["model"], state(-200)["model"])


def test_a_guard_may_have_training_begin_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_all(tmp_path, 100, 200)
    monkeypatch.setenv(RESUME_FROM, "")
    with Saver(tmp_path, keep=2) as saver:
        assert saver.load(state()) is None
        saver.save(50, state(50))
        saver.wait()
        assert steps(tmp_path) == [50]  # the others are of the course that was left


def test_rotation_keeps_what_is_in_use(tmp_path: Path) -> None:
    save_all(tmp_path, 1, 2, 3)
    call_good(tmp_path / "step-1")
    lease = tmp_path / ".coordinate-eval-0" / "run-1" / f"files{tmp_path / 'step-2'}"
    lease.mkdir(parents=True)
    foreign = tmp_path / "step-0"
    foreign.mkdir()
    (foreign / ".metadata").touch()
    save_all(tmp_path, 4, 5, keep=1)
    assert steps(tmp_path) == [0, 1, 2, 5]
    lease.rmdir()
    call_good(tmp_path / "step-5")
    save_all(tmp_path, 6, keep=1)
    assert steps(tmp_path) == [0, 5, 6]


def test_a_torn_save_is_not_the_newest_and_rotation_does_not_count_it(tmp_path: Path) -> None:
    save_all(tmp_path, 1, 2)
    file = next((tmp_path / "step-2").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    assert latest(tmp_path) == tmp_path / "step-1"
    (tmp_path / "step-3").mkdir()
    assert latest(tmp_path) == tmp_path / "step-1"


@pytest.mark.parametrize("what", ["missing", "empty", "torn", "nameless"])
def test_what_the_guard_chose_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    save_all(tmp_path, 1, 2)
    place = tmp_path / {"nameless": "final"}.get(what, "step-9")
    if what in ("torn", "nameless"):
        (tmp_path / "step-2").rename(place)
    if what == "torn":
        next(place.glob("*.distcp")).write_bytes(b"")
    elif what == "nameless":
        (place / ".saver.json").unlink()
    elif what == "empty":
        place.mkdir()
    monkeypatch.setenv(RESUME_FROM, str(place))
    with Saver(tmp_path) as saver, pytest.raises(SaveError, match=RESUME_FROM):
        saver.load(state())


def test_a_name_that_is_taken_stays(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "mine").touch()
    with Saver(tmp_path) as saver:
        saver.save(1, state(1))
        with pytest.raises(SaveError, match="move it away"):
            saver.wait()
    assert (tmp_path / "step-1" / "mine").exists()


def test_saves_are_due_at_each_so_many_steps_and_at_a_signal(tmp_path: Path) -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR1)}
    for number in before:
        with Saver(tmp_path, every=3) as saver:
            assert [step for step in range(1, 8) if saver.due(step)] == [3, 6]
            assert not saver.should_stop()
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # by srun, after Slurm's own
            assert saver.due(8)
            assert saver.should_stop()
            assert not saver.due(8)
    assert before == {s: signal.getsignal(s) for s in before}


def test_a_saver_that_is_not_asked_leaves_no_signal_unheard(tmp_path: Path) -> None:
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with Saver(tmp_path) as saver:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert saver.due(1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("left", "near"), [(30, True), (3600, False)])
def test_a_save_is_due_before_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, near: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + left))
    with Saver(tmp_path) as saver:
        assert saver.due(1) is near
        assert saver.should_stop() is near


def test_each_save_is_evaluated_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def called(path: Path, **given: Any) -> None:
        seen.append((path.name, (path / ".metadata").exists(), given))

    monkeypatch.setattr("coordinate_eval.checkpointing.writer.after_save", called)
    save_all(tmp_path, 1, evaluate=True)
    save_all(tmp_path, 2, evaluate={"suite": "base"})
    save_all(tmp_path, 3)
    assert seen == [
        ("step-1", True, {"step": 1, "rank": 0}),
        ("step-2", True, {"step": 2, "rank": 0, "suite": "base"}),
    ]
