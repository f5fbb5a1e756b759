"""Standard output that is full, closed or poor in characters, and a folder that went away."""

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.tiny import tiny_model

from coordinate_eval.coordinator.cli import app
from coordinate_eval.coordinator.cli.output import quiet_libraries
from coordinate_eval.coordinator.cli.streams import whole_output

FULL = Path("/dev/full")


def main(monkeypatch: pytest.MonkeyPatch, *args: str) -> object:
    """The exit status of the console script."""
    monkeypatch.setattr(sys, "argv", ["coordinate-eval", *args])
    with patch.dict(os.environ), pytest.raises(SystemExit) as ended:
        app.main()
    return ended.value.code


@pytest.mark.parametrize("command", ["--version", "suites", "config"])
def test_output_that_cannot_be_written_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(monkeypatch, command) == 1
    said = capsys.readouterr().err
    assert said == "coordinate-eval: cannot write the output: No space left on device\n"


def test_without_any_place_for_errors_the_exit_status_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "__stderr__", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(monkeypatch, "status", "no-such-run") == 2


def test_a_reader_that_leaves_ends_it_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(monkeypatch, "config") == 1
    assert capsys.readouterr().err == ""


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(OSError, match="No space") as caught, whole_output():
        raise OSError(28, "No space left on device", "file")
    assert caught.value.filename == "file"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_the_encoding_lacks_become_question_marks(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    with whole_output():
        sys.stdout.write("a … b \udcff\n")
    assert written.getvalue() == b"a ? b ?\n"


def test_a_working_directory_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, folder = str(tiny_model()), tmp_path / "gone"
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes: [{name: n, gpus: 1, gpu_type: h200}]\n")
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(monkeypatch, "run", model, "--cluster", str(cluster), "--dry-run") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("coordinate-eval: the working directory is gone")
    assert captured.out == ""


def test_warnings_of_libraries_stay_off_the_screen_unless_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    harness, other = logging.getLogger("lm_eval.tasks"), logging.getLogger("some.library")
    for verbose in (False, True):
        with warnings.catch_warnings(record=True) as warned, own_handlers():
            warnings.simplefilter("always")
            with quiet_libraries(verbose=verbose):
                harness.warning("[Task: x] metric y is defined, but aggregation is not")
                other.warning("a warning")
                warnings.warn("another one", stacklevel=1)
                harness.error("an error")
                other.error("another error")
        said = capsys.readouterr().err
        assert ("is defined" in said) == ("a warning" in said) == bool(warned) == verbose
        assert "an error" in said
        assert "another error" in said
    assert logging.lastResort is not None
    assert logging.lastResort.level == logging.WARNING
    assert "DATASETS_VERBOSITY" not in os.environ


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """Log as a command does: pytest's handlers would take it before the handler of last resort."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
