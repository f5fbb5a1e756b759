"""Copies of weights: whole or refused, whatever happens to files and memory meanwhile."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plans import changed
from tests.runs import until
from tests.staging import RANGE, checkpoint, staged

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.coordinator.workers.signals import StopRequested
from coordinate_eval.errors import CoordinateError, UserError, WeightsRefused
from coordinate_eval.records import Checkpoint, CheckpointFormat


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "RANGE_BYTES", RANGE)


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


def test_a_checkpoint_that_changes_meanwhile_is_refused(root: Path, source: Checkpoint) -> None:
    place = StagedWeights(str(root), "run", "node")

    def overwrite(done: int) -> None:
        if done < source.bytes:
            with Path(source.weights[0]).open("ab") as file:
                file.write(b"more")

    with place.hold():
        with pytest.raises(UserError, match="changed after it was submitted"):
            place.copy(source, overwrite)
        assert not place.folder.exists()
    assert list(root.iterdir()) == []


def test_a_checkpoint_that_vanishes_is_said(root: Path, source: Checkpoint) -> None:
    shutil.rmtree(source.path)
    place = StagedWeights(str(root), "run", "node")
    with place.hold(), pytest.raises(UserError, match="was deleted before it was copied"):
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


def test_what_a_stopped_keeper_has_converted_waits_for_who_goes_on(
    root: Path, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text('{"model_type": "made_up"}')
    torch.save({f"w{n}": torch.full((300, 400), float(n)) for n in range(9)}, tmp_path / "x.pt")
    source = checkpoints.inspect(tmp_path / "x.pt")
    keeper, trial = (StagedWeights(str(root), "run", "node") for _ in range(2))

    def stop(done: int) -> None:
        if done:
            raise StopRequested

    with trial.hold():
        with pytest.raises(StopRequested), keeper.hold():
            keeper.copy(source, stop)
        assert trial.begun()
        assert not trial.ready(source.identity)
        assert trial.copy(source)
        assert trial.ready(source.identity)
    assert list(root.iterdir()) == []
    with pytest.raises(StopRequested), keeper.hold():
        keeper.copy(source, stop)
    assert list(root.iterdir()) == []


def test_a_checkpoint_that_changed_since_the_call_is_refused_before_it_is_read(
    root: Path, source: Checkpoint
) -> None:
    Path(source.weights[0]).write_bytes(b"of another step")
    place = StagedWeights(str(root), "run", "node")
    seen: list[int] = []
    with place.hold(), pytest.raises(UserError, match="changed"):
        place.copy(source, seen.append)
    assert seen == []
    assert list(root.iterdir()) == []


def test_numbers_of_a_checkpoint_that_is_written_again_refuse_no_weights(
    root: Path, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text('{"model_type": "made_up"}')
    weights = tmp_path / "x.pt"
    torch.save({f"w{n}": torch.full((300, 400), torch.nan) for n in range(9)}, weights)
    source = checkpoints.inspect(weights)
    place = StagedWeights(str(root), "run", "node")
    with place.hold(), pytest.raises(UserError, match="changed after it was submitted") as caught:
        place.copy(source, lambda _: os.utime(weights))
    assert not isinstance(caught.value, WeightsRefused)
    assert list(root.iterdir()) == []


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


def test_engines_keep_room_for_what_their_processes_share(
    small_memory: Path, tmp_path: Path
) -> None:
    tight, roomy = (checkpoint(tmp_path / str(size), size=size) for size in (900_000, 700_000))
    for source in (tight, roomy):
        place = StagedWeights(str(small_memory), "run", "node")
        with place.hold():
            assert place.copy(source, lambda _: None)
            assert (place.folder / "model.safetensors").is_symlink() == (source is tight)


def test_memory_that_others_fill_meanwhile_is_said(
    small_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "RANGE_BYTES", 10_000)
    source = checkpoint(tmp_path / "step", size=800_000)
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
    source = checkpoint(tmp_path / "step")
    folder = Path(source.path)
    weights = [folder / f"model-{n}.safetensors" for n in range(len(sizes))]
    for path, size in zip(weights, sizes, strict=True):
        path.write_bytes(os.urandom(size))
    identity = checkpoints._identity(weights, [Path(f) for f in source.files])
    whole = {"weights": list(map(str, weights)), "bytes": sum(sizes), "parameters": sum(sizes)}
    source = changed(source, identity=identity, **whole)
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
    subprocess.run(["sync", source], check=True)  # only what is on disk can be dropped
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
