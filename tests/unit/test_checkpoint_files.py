"""Files of a checkpoint are read only where its author could read them, and kept as private."""

import mmap
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from safetensors.numpy import save_file
from tests.checkpoints import refused, sides

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.errors import UserError

SECRET = "-----BEGIN PRIVATE KEY-----"
SOMEBODY = 54321
"""A user and a group that nobody is in."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="makes files of other users, as root")


def checkpoint(folder: Path) -> Path:
    sides(folder)
    save_file({"w": numpy.zeros(4, dtype=numpy.float16)}, folder / "model.safetensors")
    return folder


def replaced(path: Path, target: Path) -> None:
    """Put a link in place of a file."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.fixture
def place(tmp_path: Path) -> SimpleNamespace:
    """A checkpoint, and a key in another folder that only its owner can read."""
    key = tmp_path / "home" / "key"
    key.parent.mkdir()
    key.write_text(SECRET)
    key.chmod(0o600)
    return SimpleNamespace(
        folder=checkpoint(tmp_path / "checkpoint"), key=key, other=tmp_path / "other"
    )


LINKED = ("tokenizer.json", "config.json", "generation_config.json", "chat_template.jinja",
          "vocab.txt", "tokenizer.model", "tokenizer_config.json")  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_to_a_private_file_is_refused(place: SimpleNamespace, name: str) -> None:
    replaced(place.folder / name, place.key)
    refused(place.folder, name, str(place.key), "copy it into that folder")


def test_a_chain_of_links_is_followed_to_its_end(place: SimpleNamespace) -> None:
    replaced(place.folder / "one", place.key)
    replaced(place.folder / "tokenizer.json", place.folder / "one")
    refused(place.folder, "tokenizer.json", str(place.key))


def test_a_linked_folder_within_a_checkpoint_is_followed(place: SimpleNamespace) -> None:
    replaced(place.folder / "sub", place.key.parent)
    replaced(place.folder / "tokenizer.json", Path("sub/key"))
    refused(place.folder, "tokenizer.json", str(place.key))


def test_an_open_file_in_a_closed_folder_is_private(place: SimpleNamespace) -> None:
    place.key.chmod(0o644)
    place.key.parent.chmod(0o700)
    replaced(place.folder / "tokenizer.json", place.key)
    refused(place.folder, "tokenizer.json", str(place.key))


def test_what_is_linked_from_a_process_is_private(place: SimpleNamespace) -> None:
    replaced(place.folder / "tokenizer.json", Path("/proc/self/environ"))
    refused(place.folder, "tokenizer.json")


@pytest.mark.parametrize(
    "name",
    ["tokenizer.readme.txt", "tokenizer.secret.json", "tokenizer_x.txt", "id.model", "a.tiktoken"],
)
def test_only_names_that_something_reads_are_taken(place: SimpleNamespace, name: str) -> None:
    replaced(place.folder / name, place.key)
    assert {Path(file).name for file in inspect(place.folder).files} == {
        "config.json",
        "tokenizer.json",
    }


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket of a terminal"])
def test_pipes_devices_and_folders_are_refused(
    place: SimpleNamespace, name: str, kind: str
) -> None:
    path = place.folder / name
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("/dev/ptmx")
    refused(place.folder, name, "not a regular file")


def test_a_pipe_as_a_state_dict_is_refused(place: SimpleNamespace) -> None:
    (place.folder / "model.safetensors").unlink()
    os.mkfifo(place.folder / "model.pt")
    refused(place.folder, "model.pt", "not a regular file")


# -- what people do ------------------------------------------------------------------------------


def test_a_snapshot_of_a_private_cache_is_read(place: SimpleNamespace) -> None:
    snapshot = place.other / "models--a--b" / "snapshots" / "0123"
    blobs = place.other / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(place.folder.iterdir())):
        shutil.copy(file, blobs / str(number))
        (blobs / str(number)).chmod(0o600)
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert len(inspect(snapshot).files) == 2
    # The blobs themselves lead nowhere else.
    replaced(blobs / "2", place.key)
    refused(snapshot, str(place.key))


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "open_"),
    [(0o755, 0o644, True), (0o2750, 0o640, True), (0o711, 0o664, True), (0o700, 0o644, False)],
)
def test_a_shared_tokenizer_is_read(
    place: SimpleNamespace, folder_mode: int, file_mode: int, open_: bool
) -> None:
    place.other.mkdir()
    shared = place.other / "tokenizer.json"
    shared.write_text('{"vocab": {}}')
    shared.chmod(file_mode)
    place.other.chmod(folder_mode)
    replaced(place.folder / "tokenizer.json", shared)
    if open_:
        assert inspect(place.folder).files[-1].endswith("tokenizer.json")
    else:
        refused(place.folder, str(shared))
        # Naming its folder makes it the user's choice.
        assert str(shared) in inspect(place.folder, tokenizer=place.other).files


def test_links_between_private_folders_above_both_are_read(tmp_path: Path) -> None:
    project = tmp_path / "project"
    folder = checkpoint(project / "step-1000")
    (project / "shared").mkdir()
    (project / "shared" / "tokenizer.json").write_text('{"vocab": {}}')
    replaced(folder / "tokenizer.json", project / "shared" / "tokenizer.json")
    project.chmod(0o700)
    assert inspect(folder).parameters == 4


def test_a_moving_name_and_private_weights_of_ones_own_are_read(place: SimpleNamespace) -> None:
    weights = place.other / "model.safetensors"
    place.other.mkdir(mode=0o700)
    shutil.move(place.folder / "model.safetensors", weights)
    weights.chmod(0o600)
    replaced(place.folder / "model.safetensors", weights)
    latest = place.folder.parent / "latest"
    latest.symlink_to(place.folder.name)
    assert inspect(latest).parameters == 4


# -- other users ---------------------------------------------------------------------------------


def of_somebody(folder: Path) -> None:
    for file in [folder, *folder.iterdir()]:
        os.chown(file, SOMEBODY, SOMEBODY, follow_symlinks=False)


@as_root
@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_what_somebody_else_links_to_must_be_open(place: SimpleNamespace, name: str) -> None:
    private = place.key.parent / name
    shutil.copy(place.folder / name, private)
    private.chmod(0o600)
    replaced(place.folder / name, private)
    of_somebody(place.folder)
    refused(place.folder, str(private))
    private.chmod(0o640)  # of a group that the author is not in
    refused(place.folder, str(private))
    private.chmod(0o644)
    assert inspect(place.folder).parameters == 4


@as_root
@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_another_name_of_a_private_file_is_refused(place: SimpleNamespace, name: str) -> None:
    private = place.key.parent / name
    shutil.copy(place.folder / name, private)
    private.chmod(0o600)
    (place.folder / name).unlink()
    of_somebody(place.folder)
    os.link(private, place.folder / name)
    refused(place.folder, name)


@as_root
def test_an_access_list_is_not_the_bits_of_a_group(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.key.write_text('{"vocab": {}}')
    place.key.chmod(0o640)
    replaced(place.folder / "tokenizer.json", place.key)
    assert inspect(place.folder).parameters == 4
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"a list")
    refused(place.folder, str(place.key))


# -- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "umask", "expected"),
    [(0o600, 0o022, 0o600), (0o644, 0o022, 0o644), (0o644, 0o077, 0o600), (0o440, 0o022, 0o640)],
)
def test_a_copy_is_as_private(place: SimpleNamespace, mode: int, umask: int, expected: int) -> None:
    source, target = place.folder / "tokenizer.json", place.folder.parent / "copy"
    source.chmod(mode)
    before = os.umask(umask)
    try:
        checkpoint_files.copy(source, target, bytes)
    finally:
        os.umask(before)
    assert target.read_text() == source.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == expected


@as_root
def test_a_copy_of_another_group_is_not_for_that_group(place: SimpleNamespace) -> None:
    source, target = place.folder / "tokenizer.json", place.folder.parent / "copy"
    source.chmod(0o640)
    os.chown(source, -1, SOMEBODY)
    checkpoint_files.copy(source, target, bytes)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_nothing_is_overwritten(place: SimpleNamespace) -> None:
    link = place.folder.parent / "copy"
    link.symlink_to(place.key)
    with pytest.raises(FileExistsError):
        checkpoint_files.copy(place.folder / "tokenizer.json", link, bytes)
    assert place.key.read_text() == SECRET


def swap_for_link(path: Path, target: Path) -> None:
    replaced(path, target)


def swap_for_pipe(path: Path, target: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("swap", [swap_for_link, swap_for_pipe])
def test_a_file_that_is_swapped_after_the_look_is_refused(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path, Path], None]
) -> None:
    path, target = place.folder / "tokenizer.json", place.folder.parent / "copy"
    real = os.open

    def slow(name: str, *args: int, **more: int) -> int:
        if name == path:
            swap(path, place.key)
        return real(name, *args, **more)

    monkeypatch.setattr(os, "open", slow)
    with pytest.raises(UserError):
        checkpoint_files.copy(path, target, bytes)
    assert not target.exists()


# -- sizes ---------------------------------------------------------------------------------------


def test_what_is_mapped_of_a_file_stays_when_the_file_is_cut_short(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": numpy.arange(100_000)}, file)
    whole = file.read_bytes()
    with (
        checkpoint_files.opened(file, weights=True) as opened,
        checkpoint_files.open_path(opened, 64) as path,
        open(path, "rb") as mapped,
        mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ) as bytes_of_it,
    ):
        os.truncate(file, 0)
        assert bytes_of_it[:64] == whole[:64]
        assert len(bytes_of_it) == len(whole)


def test_large_files_are_refused_by_name(place: SimpleNamespace) -> None:
    with (place.folder / "tokenizer.json").open("r+") as file:
        file.truncate(checkpoint_files.MOST_SIDE_BYTES + 1)
    refused(place.folder, "tokenizer.json", "128.0 MiB")


def test_many_large_files_are_refused(place: SimpleNamespace) -> None:
    for name in ("tokenizer.model", "vocab.txt", "merges.txt"):
        with (place.folder / name).open("w") as file:
            file.truncate(checkpoint_files.MOST_SIDE_BYTES - 1000)
    refused(place.folder, "beside the weights", "256.0 MiB", "merges.txt")


def test_a_large_config_is_refused_before_it_is_parsed(place: SimpleNamespace) -> None:
    (place.folder / "config.json").write_text("[" + "{}," * (12 << 20) + "{}]")
    refused(place.folder, "config.json", "4.0 MiB")
