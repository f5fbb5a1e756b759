"""Shared files: whole or not at all, and where it matters only once."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from coordinate_eval import _files
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Answer

ANSWER = Answer(id="a", passed=True, result="passed", seconds=1.0)
SPAWN = multiprocessing.get_context("spawn")
WRITERS = 4


def visible(folder: Path) -> list[str]:
    """Names in a folder, those of files on their way included."""
    return sorted(entry.name for entry in folder.iterdir())


def test_writing_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / 'it\'s "named"\n.json'
    _files.write(path, "one")
    _files.write(path, "two")
    assert path.read_text() == "two"
    assert visible(path.parent) == [path.name]


def test_a_name_of_the_longest_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    _files.write(path, "text")
    assert path.read_text() == "text"


def test_creating_happens_once(tmp_path: Path) -> None:
    path = tmp_path / "claim.json"
    assert _files.create(path, "mine")
    assert not _files.create(path, "yours")
    # An answer of link(2) that was lost: one's own text says that it succeeded.
    assert _files.create(path, "mine")
    assert path.read_text() == "mine"
    assert visible(tmp_path) == ["claim.json"]


def _create(folder: Path, start: Barrier, name: str) -> None:
    for number in range(20):
        start.wait()
        won = _files.create(folder / f"{number}", name)
        if won:
            (folder / f"{number}.{name}").touch()


def test_what_is_no_file_is_not_waited_for_where_one_is_created(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not _files.create(tmp_path / "pipe", "mine")


def test_of_many_who_create_at_once_one_wins(tmp_path: Path) -> None:
    start = SPAWN.Barrier(WRITERS)
    names = [f"w{i}" for i in range(WRITERS)]
    writers = [SPAWN.Process(target=_create, args=(tmp_path, start, name)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    for number in range(20):
        winners = [path.suffix[1:] for path in tmp_path.glob(f"{number}.*")]
        assert winners == [(tmp_path / f"{number}").read_text()]


def _overwrite(path: Path, letter: str) -> None:
    for _ in range(100):
        _files.write(path, letter * 5000)


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    _files.write(path, "a" * 5000)
    writers = [SPAWN.Process(target=_overwrite, args=(path, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in ("a" * 5000, "b" * 5000)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert visible(tmp_path) == ["progress.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    _files.write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        _files.write(path, "new \ud800")
    assert path.read_text() == "old"
    assert visible(tmp_path) == ["record.json"]


def test_the_first_complete_part_wins_for_good(tmp_path: Path) -> None:
    one, two, known = tmp_path / "1.part", tmp_path / "2.part", tmp_path / "known"
    one.write_text("one")
    two.write_text("two")
    assert _files.publish(one, known)
    assert not _files.publish(two, known)
    assert known.read_text() == "one"
    assert visible(tmp_path) == ["known"]
    # The winner may take everybody's parts away before the others publish theirs.
    assert not _files.publish(two, known)
    with pytest.raises(FileNotFoundError):
        _files.publish(two, tmp_path / "never published")


def test_publishing_again_after_a_lost_answer_is_winning(tmp_path: Path) -> None:
    part, known = tmp_path / "1.part", tmp_path / "known"
    part.write_text("one")
    os.link(part, known)
    assert _files.publish(part, known)
    assert visible(tmp_path) == ["known"]


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 200_000], ids=["list", "dict"])
def test_json_without_a_bottom_is_a_torn_record(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(content)
    for read in (_files.read_json, lambda path: _files.read_record(path, Answer)):
        with pytest.raises(RecordError, match=r"deep\.json"):
            read(path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"id": "a"}', b"\xff\xfe", b"[]", b"null"])
def test_a_torn_record_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answer.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"answer\.json"):
        _files.read_record(path, Answer)
    with pytest.raises(RecordError, match=r"answer\.json") as caught:
        _files.read_record_if_there(path, Answer)
    message = str(caught.value)
    assert "--run-dir" in message
    assert "\n" not in message
    assert "pydantic" not in message


def test_records_come_back_and_missing_ones_are_said(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    _files.write_record(path, ANSWER)
    assert _files.read_record(path, Answer) == ANSWER
    assert _files.read_record_if_there(tmp_path / "no.json", Answer) is None
    assert _files.read_record_if_there(path / "below a file", Answer) is None
    with pytest.raises(RecordError, match="is missing"):
        _files.read_record(tmp_path / "no.json", Answer)
    with pytest.raises(RecordError, match="cannot be read"):
        _files.read_json(tmp_path / "no.json")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthr")
    assert list(_files.whole_lines(path)) == [b"one\n", b"two\n"]
    assert list(_files.whole_lines(tmp_path / "none")) == []
    assert _files.names(tmp_path / "none") == set()


@pytest.mark.parametrize(
    "read",
    [
        lambda path: _files.read_record(path, Answer),
        _files.read_json,
        lambda path: list(_files.whole_lines(path)),
        lambda path: list(_files.lines(path)),
    ],
    ids=["record", "json", "whole lines", "lines"],
)
def test_of_a_file_without_an_end_little_is_read(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "endless.json"
    path.touch()
    os.truncate(path, 1 << 36)  # which takes no space
    with pytest.raises(RecordError, match=r"endless\.json is not read: it has more than"):
        read(path)


def test_the_end_of_a_file_is_all_that_is_read_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"begin\nend\n")
    assert _files.read_end(path, 4) == b"end\n"
    assert _files.read_end(path, 100) == b"begin\nend\n"
