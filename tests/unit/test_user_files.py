"""Files that a user names: read whole, or refused with one message."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval import _user_files
from coordinate_eval.errors import UserError


def test_a_text_is_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("grün".encode())
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert _user_files.read_text(tmp_path / "link", "suite") == "grün"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "it does not exist"),
        (Path.mkdir, "it is a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "larger than 64 MiB"),
        (lambda path: path.symlink_to(path), "symbolic link"),
        (lambda path: path.write_bytes(b"a\nb: \xff\n"), "line 2 is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused(
    make: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    make(tmp_path / "x")
    with pytest.raises(UserError) as caught:
        _user_files.read_text(tmp_path / "x", "cluster file")
    assert f"cluster file {tmp_path / 'x'} cannot be read: " in str(caught.value)
    assert why in str(caught.value)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", f"echo grün > '{tmp_path / 'pipe'}'"])
    assert _user_files.read_text(tmp_path / "pipe", "suite") == "grün\n"
    assert writer.wait() == 0


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(UserError, match="null byte"):
        _user_files.read_text(Path("a\0b"), "suite")
    with pytest.raises(UserError, match="too long"):
        _user_files.read_text(Path("x" * 5000), "suite")


def test_a_file_that_is_far_too_large(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", 2**40)
    with pytest.raises(UserError, match="larger than 64 MiB"):
        _user_files.read_text(tmp_path / "x", "plan")
