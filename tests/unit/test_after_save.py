"""Training code asks for an evaluation: it is never held up, and never harmed."""

import logging
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.runs import PATIENCE_SECONDS

import coordinate_eval
from coordinate_eval import _after_save, integrations

LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class Command:
    """What stands in for the interpreter: notes its arguments, and does as it is told."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self._path = folder / "python"
        self.does("echo run step-100 is supervised by job 7")

    def does(self, script: str) -> None:
        note = f'printf "%s\\n" "$@" >>{shlex.quote(str(self.calls))}'
        self._path.write_text(f"#!/bin/sh\n{note}\n{script}\n")
        self._path.chmod(0o755)

    def arguments(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    made = Command(tmp_path)
    monkeypatch.setattr(sys, "executable", str(made._path))
    monkeypatch.setattr(_after_save, "_not_taken", {})
    # An engine that other tests have in this process is a group of one rank.
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return made


def ended() -> None:
    """Wait until what was started has ended and was told."""
    for thread in [t for t in threading.enumerate() if t.name == "after_save"]:
        thread.join(PATIENCE_SECONDS)


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def test_what_is_asked_for(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "coordinate_eval")
    checkpoint = tmp_path / "step-100"
    coordinate_eval.after_save(
        f"{checkpoint}/", step=100, suite="suite.yaml", options=["--limit", "5"]
    )
    ended()
    assert command.arguments() == [
        "-P", "-m", "coordinate_eval", "run", str(checkpoint), "--queue", "--no-strict",
        "--limit", "5", "--step=100", "--suite=suite.yaml", "--cluster=slurm",
    ]  # fmt: skip
    said = "run step-100 is supervised by job 7"
    assert messages(caplog, logging.INFO) == [f"evaluation of {checkpoint}: {said}"]
    assert (tmp_path / "step-100.evaluation.log").read_text() == f"{said}\n"


def test_an_average_is_asked_for_after_the_save(command: Command, tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-100"
    coordinate_eval.after_save(checkpoint, average="last:5")
    ended()
    program = ["-P", "-m", "coordinate_eval", "run"]
    asked = ["--queue", "--no-strict", "--cluster=slurm"]
    of_average = ["last:5", str(checkpoint), "--average"]
    assert command.arguments() == [*program, str(checkpoint), *asked, *program, *of_average, *asked]


def test_without_a_lease(command: Command, tmp_path: Path) -> None:
    coordinate_eval.after_save(tmp_path / "step-100", keep=False)
    ended()
    assert "--no-keep" in command.arguments()


def test_nobody_else_can_write_to_the_log_of_a_training_job_without_umask(
    command: Command, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        coordinate_eval.after_save(tmp_path / "step-100")
    finally:
        os.umask(before)
    ended()
    assert (tmp_path / "step-100.evaluation.log").stat().st_mode & 0o777 == 0o644


def test_of_a_checkpoint_in_a_store_the_url_is_asked_for(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coordinate_eval")
    command.does("echo submitted")
    coordinate_eval.after_save("s3://bucket/run/step-100/", average="last:2")
    ended()
    url = "s3://bucket/run/step-100"
    assert messages(caplog, logging.INFO) == [f"evaluation of {url}: submitted"] * 2
    assert command.arguments().count(url) == 2
    assert list(tmp_path.glob("*.log")) == []
    coordinate_eval.after_save("s3://user:secret@bucket/run")
    (said,) = messages(caplog, logging.WARNING)
    assert "password" in said
    assert "secret" not in said


@pytest.mark.parametrize("options", [["--cluster", "local"], ["--cluster=local"]])
def test_another_cluster(command: Command, tmp_path: Path, options: list[str]) -> None:
    coordinate_eval.after_save(tmp_path / "x", options=options)
    ended()
    assert command.arguments()[-len(options) :] == options


def test_training_does_not_wait(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coordinate_eval")
    silent = tmp_path / "silent"
    os.mkfifo(silent)
    command.does(f"read answer <{shlex.quote(str(silent))}; echo $answer")
    coordinate_eval.after_save(tmp_path / "x")
    # It has returned, although nobody has answered yet.
    assert messages(caplog, logging.INFO) == []
    silent.write_text("submitted\n")
    ended()
    assert messages(caplog, logging.INFO) == [f"evaluation of {tmp_path / 'x'}: submitted"]


def test_a_refusal_is_a_warning_with_its_words(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command.does("echo no such suite >&2; exit 2")
    for _ in range(2):  # each message has the words of its own call
        coordinate_eval.after_save(tmp_path / "x")
        ended()
    words = f"no evaluation of {tmp_path / 'x'} (exit status 2): no such suite"
    assert messages(caplog, logging.WARNING) == [words] * 2


def test_of_much_output_whole_lines_are_logged(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coordinate_eval")
    command.does("seq 10000 12000; echo that is all")
    coordinate_eval.after_save(tmp_path / "x")
    ended()
    (said,) = messages(caplog, logging.INFO)
    first, *lines, last = said.removeprefix(f"evaluation of {tmp_path / 'x'}: ").splitlines()
    assert (first, last) == ("…", "that is all")
    assert lines == [str(number) for number in range(12001 - len(lines), 12001)]


def test_a_scheduler_that_takes_no_job_now_is_asked_again(
    command: Command,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "coordinate_eval")
    monkeypatch.setattr(_after_save, "_PAUSE_SECONDS", 0.1)
    tries = shlex.quote(str(tmp_path / "tries"))
    command.does(f"echo try >>{tries}; [ $(wc -l <{tries}) -eq 3 ] || exit 3; echo submitted")
    coordinate_eval.after_save(tmp_path / "x")
    ended()
    assert messages(caplog, logging.INFO) == [f"evaluation of {tmp_path / 'x'}: submitted"]
    assert (tmp_path / "tries").read_text() == "try\n" * 3


@pytest.mark.parametrize("plant", ["fifo", "read fifo", "link", "hard link"])
def test_what_others_put_in_place_of_its_log_loses_no_evaluation(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture, plant: str
) -> None:
    caplog.set_level(logging.INFO, "coordinate_eval")
    log, victim = tmp_path / "x.evaluation.log", tmp_path / "victim"
    victim.write_text("mine\n")
    reader = None
    if plant == "link":
        log.symlink_to(victim)
    elif plant == "hard link":
        log.hardlink_to(victim)
    else:
        os.mkfifo(log)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if plant == "read fifo" else None
    coordinate_eval.after_save(tmp_path / "x")
    ended()
    (told,) = messages(caplog, logging.WARNING)
    assert "only this log has its output" in told
    said = "run step-100 is supervised by job 7"
    assert messages(caplog, logging.INFO) == [f"evaluation of {tmp_path / 'x'}: {said}"]
    assert victim.read_text() == "mine\n"
    if reader is not None:
        os.close(reader)


def test_what_was_refused_is_asked_for_when_a_later_save_is_taken(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a setting was wrong, and has been mended."""
    caplog.set_level(logging.INFO, "coordinate_eval")
    for step in (1, 2, 3):
        (tmp_path / f"step-{step}").mkdir()
    command.does("echo setting engine is a section >&2; exit 2")
    for step in (1, 2):
        coordinate_eval.after_save(tmp_path / f"step-{step}", step=step)
        ended()
        coordinate_eval.after_save(tmp_path / f"step-{step}", step=step, suite="code.yaml")
        ended()
    (tmp_path / "step-2").rmdir()
    command.does("echo submitted")
    for step in (3, 3):
        coordinate_eval.after_save(tmp_path / f"step-{step}", step=step)
        ended()
    taken = [f"evaluation of {tmp_path / f'step-{step}'}: submitted" for step in (3, 1, 1, 3)]
    assert messages(caplog, logging.INFO) == taken
    assert command.arguments().count("--step=1") == 4  # of each its own options
    assert command.arguments().count("--suite=code.yaml") == 3  # of step 2 no more


def test_what_takes_too_long_is_ended(
    command: Command,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_after_save, "_MOST_SECONDS", 5)
    command.does("echo the scheduler does not answer; sleep 600")
    coordinate_eval.after_save(tmp_path / "x")
    ended()
    (told,) = messages(caplog, logging.WARNING)
    assert told.endswith("no answer in 5 s: the scheduler does not answer")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_other_ranks_do_nothing(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    caplog.set_level(logging.DEBUG, "coordinate_eval")
    monkeypatch.setenv(name, "3")
    coordinate_eval.after_save(tmp_path / "x")
    assert messages(caplog, logging.DEBUG) == [
        f"rank 3 leaves the evaluation of {tmp_path / 'x'} to rank 0"
    ]
    coordinate_eval.after_save(tmp_path / "x", rank=1)
    ended()
    assert command.arguments() == []
    coordinate_eval.after_save(tmp_path / "x", rank=0)
    ended()
    assert command.arguments()


@pytest.mark.parametrize(
    ("path", "executable", "words"),
    [
        ("missing/step-100", None, "there is no such file or folder"),
        (None, None, "TypeError"),
        ("with\0nul", None, "ValueError"),
        ("x", "", "PermissionError|FileNotFoundError|exit status"),
    ],
)
def test_it_never_raises(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str | None,
    executable: str | None,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if executable is not None:
        monkeypatch.setattr(sys, "executable", executable)
    coordinate_eval.after_save(path)  # type: ignore[arg-type]  # as untyped code calls it
    ended()
    (told,) = messages(caplog, logging.WARNING)
    assert told.startswith("no evaluation of")
    assert any(word in told for word in words.split("|")), told


def test_an_ending_job_waits_for_the_submission_of_its_last_checkpoint(
    command: Command, tmp_path: Path
) -> None:
    command.does("sleep 1; echo submitted")
    script = (
        "import logging, sys, coordinate_eval\n"
        "logging.basicConfig(level=logging.INFO)\n"
        f"sys.executable = {sys.executable!r}\n"
        f"coordinate_eval.after_save({str(tmp_path / 'last')!r})\n"
    )
    python = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run(
        [str(python), "-c", script],
        env=os.environ | {"PYTHONPATH": str(Path(coordinate_eval.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert f"evaluation of {tmp_path / 'last'}: submitted" in done.stderr


def test_its_import_costs_nothing() -> None:
    script = (
        "import sys; b = set(sys.modules); import coordinate_eval; print(*set(sys.modules) - b)"
    )
    python = Path(sys.base_prefix) / "bin" / "python3"
    source = str(Path(coordinate_eval.__file__).parents[1])
    done = subprocess.run(
        [str(python), "-c", script],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    light = {"__future__", "coordinate_eval"}
    light |= {f"coordinate_eval.{name}" for name in ("_after_save", "_reference")}
    assert set(done.stdout.split()) <= light


def test_a_callback_refuses_what_after_save_does_not_take_when_it_is_made() -> None:
    integrations.transformers_callback(suite="base", keep=False)
    with pytest.raises(TypeError, match="sweet"):
        integrations.transformers_callback(sweet="base")
