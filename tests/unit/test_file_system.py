"""What runs ask of a file system is tried before anything is submitted, and said in one message."""

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.coordinator.inputs import folders
from coordinate_eval.coordinator.inputs.folders import try_out
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError

LINK, RENAME = "make a hard link", "rename a file over another"
SYNC = "write a folder's names to disk (fsync)"


def refuse(number: int) -> Any:
    """A call of the system that a file system does not know."""

    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_a_folder_that_works_is_left_as_it_was(tmp_path: Path) -> None:
    tried = try_out(tmp_path / "runs" / "mine")
    assert tried.folder == tmp_path
    assert (tried.broken, tried.locks) == ({}, "")
    assert abs(tried.ahead_seconds) < 60
    assert tried.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "what"), [("os.link", LINK), ("pathlib.Path.replace", RENAME), ("os.fsync", SYNC)]
)
def test_what_a_file_system_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, what: str
) -> None:
    real = os.fsync
    if call == "os.fsync":  # files can be synced, folders cannot

        def only_files(descriptor: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            real(descriptor)

        monkeypatch.setattr(call, only_files)
    else:
        monkeypatch.setattr(call, refuse(errno.EPERM))
    assert list(try_out(tmp_path).broken) == [what]
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_replaces_another_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", lambda old, new: Path(new).write_bytes(Path(old).read_bytes()))
    assert try_out(tmp_path).broken == {LINK: "a second link took a name that was there"}


def test_locks_that_nobody_respects_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    tried = try_out(tmp_path)
    assert tried.broken == {}
    assert tried.locks == "two processes can hold one lock"


def test_a_run_is_refused_where_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.EOPNOTSUPP))
    settings = Settings(runs_dir=str(tmp_path / "runs"), cache_dir=str(tmp_path / "cache"))
    names: list[folders.Name] = ["runs_dir", "cache_dir"]
    for name in names:
        with pytest.raises(UserError, match=f"setting {name}.*{re.escape(str(tmp_path))}") as said:
            folders.check_writable(settings, name)
        assert LINK in str(said.value)
        assert "NFS" in str(said.value)
    with pytest.raises(UserError, match="run directory"):
        folders.check_new(tmp_path / "mine")
    folders.check_new(tmp_path)  # it is there already, and its owner has been looked at
