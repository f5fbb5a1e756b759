"""Weights in memory: copied once, used by many, removed by the last, whoever is killed."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs import PATIENCE_SECONDS, until

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.workers.errors_of_trials import cause_of_error
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import CoordinateError, UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat

RANGE = 1 << 20
WEIGHTS = 3 * RANGE + 17
"""Several ranges, so that a copy can be met half way."""

WORKER = '''
import sys
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.records import Checkpoint

root, run, node, what, checkpoint = sys.argv[1:6]
copying.RANGE_BYTES = int(sys.argv[6])
source = Checkpoint.model_validate_json(checkpoint)

def say(word):
    print(word, flush=True)

def pause(done):
    """Half way: say so, and wait until told to go on."""
    if what == "pause" and done < source.bytes:
        say("copying")
        sys.stdin.readline()

place = StagedWeights(root, run, node)
with place.hold():
    say("holding")
    if what != "hold":
        say("filled" if place.copy(source, pause) else "another copies")
    sys.stdin.readline()
say("left")
'''


class Worker:
    """Another process that holds a node's weights, and copies them unless it is to `hold` only.

    One that is to `pause` stops half way through the copy until it is told to `go`.
    """

    def __init__(self, root: Path, node: str, what: str, source: Checkpoint) -> None:
        argv = [sys.executable, "-c", WORKER, str(root), "run", node, what]
        self.process = subprocess.Popen(
            [*argv, source.model_dump_json(), str(RANGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.says("holding")

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        self.go()
        self.says("left")
        assert self.process.wait(PATIENCE_SECONDS) == 0

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "RANGE_BYTES", RANGE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A memory file system, as far as anybody can tell."""
    made = tmp_path / "shared 'memory'"
    made.mkdir()
    return made


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    return checkpoint(tmp_path / "step 1")


def checkpoint(folder: Path, size: int = WEIGHTS) -> Checkpoint:
    folder.mkdir()
    weights, config = folder / "model.safetensors", folder / "config.json"
    weights.write_bytes(os.urandom(size))
    config.write_text(json.dumps({"hidden_size": 8}))
    return Checkpoint(
        path=str(folder),
        identity=checkpoints._identity([weights], [config]),
        format=CheckpointFormat.SAFETENSORS,
        weights=[str(weights)],
        files=[str(config)],
        bytes=size,
        parameters=size // 2,
        dtype="bfloat16",
        max_length=128,
        attention_heads=1,
        kv_bytes_per_token=1,
    )


def staged(place: StagedWeights, source: Checkpoint) -> bool:
    """Check that the copy says that it is whole, and is."""
    same = all(
        (place.folder / Path(file).name).read_bytes() == Path(file).read_bytes()
        for file in (*source.weights, *source.files)
    )
    return place.ready(source.identity) and same


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


def test_weights_that_would_end_the_copying_job_are_linked(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")
    with place.hold():
        assert place.copy(source, most_bytes=source.bytes - 1)
        assert staged(place, source)
        assert place.copy_seconds is None  # a link teaches nothing about copies
        links = [path for path in place.folder.iterdir() if path.is_symlink()]
        assert sorted(str(link.readlink()) for link in links) == sorted(source.weights)
        assert place.copy(source, most_bytes=0)  # they are there
    assert list(root.iterdir()) == []
    assert all(Path(name).is_file() for name in source.weights)
    torch = source.model_copy(update={"format": CheckpointFormat.TORCH})
    with place.hold(), pytest.raises(CoordinateError, match=r"raise \[trial\] memory_gib"):
        place.copy(torch, most_bytes=source.bytes - 1)
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


def test_a_checkpoint_that_changes_meanwhile_is_refused(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")

    def overwrite(done: int) -> None:
        if done < source.bytes:
            with Path(source.weights[0]).open("ab") as file:
                file.write(b"more")

    with place.hold():
        with pytest.raises(UserError, match="changed while it was copied"):
            place.copy(source, overwrite)
        assert not place.folder.exists()
    assert list(root.iterdir()) == []


def test_a_checkpoint_that_vanishes_is_said(root: Path, source: Checkpoint) -> None:
    shutil.rmtree(source.path)
    place = StagedWeights(str(root), "run", "node")
    with place.hold(), pytest.raises(UserError, match="No such file"):
        place.copy(source, lambda _: None)
    assert list(root.iterdir()) == []


def test_another_checkpoints_weights_are_replaced(
    root: Path, source: Checkpoint, tmp_path: Path
) -> None:
    other = checkpoint(tmp_path / "step 2", size=1000)
    place = StagedWeights(str(root), "run", "node")
    with place.hold():
        assert place.copy(source, lambda _: None)
        assert not place.ready(other.identity)
        assert place.copy(other, lambda _: None)
        assert staged(place, other)


def test_a_torn_manifest_counts_as_none(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")
    with place.hold():
        assert place.copy(source, lambda _: None)
        (place.folder / "manifest.json").write_bytes(b'{"identity": \xff')
        assert not place.ready(source.identity)
        assert place.copy(source, lambda _: None)
        assert staged(place, source)


def test_a_folder_that_somebody_else_made_is_refused(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")
    place.user_folder.mkdir(mode=0o700)
    place.user_folder.chmod(0o755)
    refused(place)
    if os.geteuid() == 0:
        place.user_folder.chmod(0o700)
        os.chown(place.user_folder, 65534, 65534)
        refused(place)
    assert list(place.user_folder.iterdir()) == []


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


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A real memory file system of one MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a tmpfs, as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_where_there_is_no_room_the_weights_are_linked(
    small_memory: Path, source: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    place = StagedWeights(str(small_memory), "run", "node")
    with place.hold():
        assert place.copy(source, lambda _: None)
        assert place.ready(source.identity)
        assert (place.folder / "model.safetensors").readlink() == Path(source.weights[0])
        assert place.copy_seconds is None  # it teaches nothing about copies
    said = capsys.readouterr().out
    assert "has room for" in said
    assert "[stage] where" in said
    assert list(small_memory.iterdir()) == []
    assert until(lambda: os.statvfs(small_memory).f_bfree > 200, "its memory to be free")


def test_memory_that_others_fill_meanwhile_is_said(
    small_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "RANGE_BYTES", 10_000)
    source = checkpoint(tmp_path / "step", size=900_000)
    others = small_memory / "of another job"

    def fill(done: int) -> None:
        with contextlib.suppress(OSError):
            others.write_bytes(bytes(1_000_000))

    place = StagedWeights(str(small_memory), "run", "node")
    with place.hold():
        with pytest.raises(UserError, match="No space left"):
            place.copy(source, fill)
        assert not place.ready(source.identity)
        assert not place.folder.exists()


def test_a_file_that_is_cut_short_meanwhile_is_never_taken_for_whole(
    root: Path, source: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StagedWeights(str(root), "run", "node")
    monkeypatch.setattr(copying, "THREADS", 1)
    real = os.preadv

    def cut(descriptor: int, buffers: list[memoryview], at: int) -> int:
        os.truncate(source.weights[0], source.bytes // 2)
        return real(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", cut)
    with place.hold():
        with pytest.raises(UserError, match=r"model\.safetensors was cut short"):
            place.copy(source, lambda _: None)
        assert not place.folder.exists()
    assert list(root.iterdir()) == []


def test_many_files_of_all_sizes_are_copied(root: Path, tmp_path: Path) -> None:
    place = StagedWeights(str(root), "run", "node")
    edges = [0, 1, RANGE, RANGE + 1]
    sizes = edges + [n * 997 for n in range(2 * copying.THREADS)]
    source = checkpoint(tmp_path / "step", size=sizes[0])
    folder = Path(source.path)
    weights = [folder / f"model-{n}.safetensors" for n in range(len(sizes))]
    for path, size in zip(weights, sizes, strict=True):
        path.write_bytes(os.urandom(size))
    identity = checkpoints._identity(weights, [Path(f) for f in source.files])
    changes = {"weights": list(map(str, weights)), "bytes": sum(sizes), "identity": identity}
    source = source.model_copy(update=changes)
    seen: list[int] = []
    with place.hold():
        assert place.copy(source, seen.append)
        assert staged(place, source)
        assert all((place.folder / w.name).stat().st_mode & 0o777 == 0o600 for w in weights)
    assert seen == sorted(seen)
    assert seen[-1] == source.bytes


def test_what_was_read_leaves_the_page_cache(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    source.write_bytes(os.urandom(2 * RANGE))
    with source.open("rb") as file:
        os.fsync(file.fileno())  # only what is on disk can be dropped
    cached = pages_in_memory(source)
    copying.copy_files([source], target, lambda _: None)
    if cached is None or not cached:
        pytest.skip("no page cache to be seen here")
    assert pages_in_memory(source) == 0


def pages_in_memory(path: Path) -> int | None:
    """Return the pages of a file in the page cache, None if they cannot be counted."""
    command = ["fincore", "--noheadings", "--output", "PAGES", str(path)]
    with contextlib.suppress(OSError, ValueError):
        return int(subprocess.run(command, capture_output=True, check=False).stdout)
    return None
