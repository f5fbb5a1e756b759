"""Weights in memory: copied once, used by many, removed by the last, whoever is killed."""

import contextlib
import fcntl
import os
from pathlib import Path

import pytest
from tests.staging import RANGE, Worker, staged

from coordinate_eval.coordinator.incidents.causes import cause_of_error
from coordinate_eval.coordinator.workers.on_node import copying, staging
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.coordinator.workers.signals import StopRequested
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "RANGE_BYTES", RANGE)


def test_the_last_one_out_removes_everything(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")
    one = Worker(root, "node", "fill", source)
    one.says("filled")
    two = Worker(root, "node", "hold", source)
    one.leave()
    assert staged(place, source)
    two.leave()
    assert list(root.iterdir()) == []


def test_all_is_private_to_the_user(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")
    seen: list[int] = []
    with place.hold():
        assert place.copy(source, seen.append)
        assert place.copy_seconds is not None
        assert staged(place, source)
        assert seen[-1] == source.bytes
        assert seen == sorted(seen)
        assert place.begun()
        for folder in (place.user_folder, place.folder.parent, place.folder):
            assert folder.stat().st_mode & 0o777 == 0o700
    assert list(root.iterdir()) == []


def test_one_copies_and_the_others_wait_for_it(root: Path, source: Checkpoint) -> None:
    copier = Worker(root, "node", "pause", source)
    copier.says("copying")
    place = StagedWeights(str(root), "run", "node")
    with place.hold():
        assert not place.ready(source.identity)
        assert place.begun()
        assert not place.copy(source, lambda _: None)
        copier.kill()
        # Nobody copies any more: whoever looks next does, from the beginning.
        assert place.copy(source, lambda _: None)
        assert staged(place, source)
    assert list(root.iterdir()) == []


def test_a_keeper_that_is_killed_leaves_its_weights_to_the_others(
    root: Path, source: Checkpoint
) -> None:
    keeper = Worker(root, "node", "fill", source)
    keeper.says("filled")
    trial = Worker(root, "node", "hold", source)
    keeper.kill()
    place = StagedWeights(str(root), "run", "node")
    assert staged(place, source)
    with place.hold():
        assert place.copy(source, lambda _: None)
        assert place.copy_seconds is None  # they were there
    assert place.remove_abandoned() == []
    trial.leave()
    assert list(root.iterdir()) == []


def test_who_is_stopped_as_it_takes_the_weights_leaves_none(
    root: Path, source: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Worker(root, "node", "fill", source)
    other.says("filled")
    real = fcntl.flock

    def flock(lock: int, how: int) -> None:
        real(lock, how)
        monkeypatch.setattr(fcntl, "flock", real)
        other.leave()  # and is not the last
        raise StopRequested

    monkeypatch.setattr(fcntl, "flock", flock)
    place = StagedWeights(str(root), "run", "node")
    with pytest.raises(StopRequested), place.hold():
        raise AssertionError("held")
    assert list(root.iterdir()) == []


def test_what_an_earlier_boot_of_the_node_left_is_written_again(
    root: Path, source: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = root.with_name("boot")
    monkeypatch.setattr(staging, "_BOOT", boot)
    place = StagedWeights(str(root), "run", "node")
    with place.hold():
        boot.write_text("first\n")
        assert place.copy(source)
        assert place.ready(source.identity)
        boot.write_text("second\n")
        assert not place.ready(source.identity)
        (weights,) = place.folder.glob("*.safetensors")
        weights.write_bytes(bytes(weights.stat().st_size))
        assert place.copy(source)
        assert staged(place, source)


def test_sweeping_takes_what_the_killed_left_and_nothing_in_use(
    root: Path, source: Checkpoint
) -> None:
    dead = Worker(root, "dead", "fill", source)
    dead.says("filled")
    torn = Worker(root, "torn", "pause", source)
    torn.says("copying")
    alive = Worker(root, "alive", "fill", source)
    alive.says("filled")
    busy = Worker(root, "busy", "pause", source)
    busy.says("copying")
    dead.kill()
    torn.kill()
    mine = StagedWeights(str(root), "run 2", "alive")
    swept = {folder.name for folder in mine.remove_abandoned()}
    assert swept == {"dead", "torn"}
    assert staged(StagedWeights(str(root), "run", "alive"), source)
    busy.go()
    busy.says("copying")  # it goes on, to its next pause
    for worker in (alive, busy):
        worker.kill()
    assert len(mine.remove_abandoned()) == 2
    assert list(root.iterdir()) == []


def test_sweeping_follows_no_link_and_trusts_no_folder_of_others(
    root: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "uv").mkdir(parents=True)
    (project / "uv" / "main.py").write_text("work of years")
    (project / "uv.lock").write_text("")
    place = StagedWeights(str(root), "run", "node")
    place.user_folder.mkdir(mode=0o700)
    (place.user_folder / "run-2").symlink_to(project)
    assert place.remove_abandoned() == []
    (place.user_folder / "run-2").unlink()
    project.rename(place.user_folder / "run-2")
    place.user_folder.chmod(0o777)
    assert place.remove_abandoned() == []
    assert (place.user_folder / "run-2" / "uv" / "main.py").read_text() == "work of years"


def test_a_sweeper_that_comes_late_leaves_the_next_ones_weights(
    root: Path, source: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, mine = StagedWeights(str(root), "other", "n"), StagedWeights(str(root), "mine", "n")
    leaving, coming = contextlib.ExitStack(), contextlib.ExitStack()
    leaving.enter_context(other.hold())
    real = fcntl.flock

    def flock(lock: int, how: int) -> None:
        if how & fcntl.LOCK_EX:  # the sweeper has opened the lock, and is held up
            monkeypatch.setattr(fcntl, "flock", real)
            leaving.close()
            coming.enter_context(other.hold())
            assert other.copy(source, lambda _: None)
        real(lock, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with coming:
        assert mine.remove_abandoned() == []
        assert other.ready(source.identity)
    assert not other.folder.exists()


def test_nodes_that_share_a_root_do_not_meet(root: Path, source: Checkpoint) -> None:
    one = StagedWeights(str(root), "run", "node1")
    two = StagedWeights(str(root), "run", "node2")
    with one.hold():
        assert one.copy(source, lambda _: None)
        with two.hold():
            assert not two.ready(source.identity)
            assert two.copy(source, lambda _: None)
        assert not two.folder.exists()
        assert staged(one, source)
    assert list(root.iterdir()) == []


def test_a_folder_that_somebody_else_made_is_refused(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")
    place.user_folder.mkdir(mode=0o700)
    project = root.with_name("project")
    (project / "node").mkdir(parents=True)
    (project / "node.lock").touch()
    (place.user_folder / "run").symlink_to(project)
    place.user_folder.chmod(0o755)
    refused(place)
    if os.geteuid() == 0:
        place.user_folder.chmod(0o700)
        os.chown(place.user_folder, 65534, 65534)
        refused(place)
    assert list(place.user_folder.iterdir()) == [place.user_folder / "run"]
    assert sorted(path.name for path in project.iterdir()) == ["node", "node.lock"]


def test_a_folder_that_somebody_else_made_is_the_nodes_fault(root: Path) -> None:
    """So that others cannot end runs: they go on elsewhere."""
    place = StagedWeights(str(root), "run", "node")
    place.user_folder.mkdir(mode=0o755)
    with pytest.raises(UserError) as caught, place.hold():
        pass
    assert cause_of_error(caught.value, engine_started=False) == "node"


def test_a_link_in_the_folders_place_is_refused(root: Path, tmp_path: Path) -> None:
    place = StagedWeights(str(root), "run", "node")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place.user_folder.symlink_to(elsewhere)
    refused(place)
    assert list(elsewhere.iterdir()) == []


def test_a_root_that_is_not_there_is_said(tmp_path: Path) -> None:
    refused(StagedWeights(str(tmp_path / "nowhere"), "run", "node"))


def refused(place: StagedWeights) -> None:
    with pytest.raises(UserError, match=r"\[stage\] where"), place.hold():
        raise AssertionError("held")
