"""Whole runs whose engine is a server, which is made up: deaths change no score."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests import completions
from tests.random_examples import LONG
from tests.runs import Workspace, processes, results, scores, times_answered, until
from tests.tiny import tiny_model

DATASETS = ("tiny_choice", "tiny_sums", "tiny_cloze", "tiny_talk", "tiny_prose")
KILLS = 20 if LONG else 2
"""In each run."""


def program(user: Workspace) -> str:
    """A server whose processes are told from those of other tests."""
    copy = user.folder / Path(completions.__file__).name
    if not copy.exists():  # a server may be about to read it
        shutil.copy(completions.__file__, copy)
    return str(copy)


def engine(user: Workspace, seconds: float, **args: object) -> tuple[str, ...]:
    """The options of a run by a made-up server that takes so long for each answer."""
    words = [sys.executable, program(user), "--port", "{port}", "--model", "{model}"]
    command = shlex.join([*words, "--seconds", str(seconds)])
    return "--engine", "server", "--engine-args", json.dumps({"command": command} | args)


def asked(user: Workspace, run: Path, *args: object) -> tuple[object, ...]:
    return "run", tiny_model(), "--suite", user.suite(*DATASETS), "--run-dir", run, *args


@pytest.fixture(scope="module")
def expected(user: Workspace) -> dict[str, object]:
    run = user.folder / "undisturbed server"
    user.call(*asked(user, run, *engine(user, 0.0)))
    return scores(run)


def answered(run: Path) -> int:
    lines = 0
    for path in run.glob("outputs/*/*"):
        with suppress(OSError):
            lines += path.read_bytes().count(b"\n")
    return lines


def _await_more(run: Path, than: int, supervisor: subprocess.Popen[str]) -> None:
    until(lambda: answered(run) > than or supervisor.poll() is not None, "an answer", run)


@pytest.mark.parametrize("seed", range(10 if LONG else 1))
def test_deaths_of_servers_and_trials_change_no_score(
    user: Workspace, expected: dict[str, object], seed: int
) -> None:
    run, drawn = user.folder / f"killed servers {seed}", random.Random(seed)
    # Slow enough that a kill meets work, and few at once, so that many of them do.
    supervisor = user.start(*asked(user, run, *engine(user, 0.3, concurrency=2)), "--json")
    killed, before = 0, 0
    while killed < KILLS and supervisor.poll() is None:
        _await_more(run, before, supervisor)
        victims = processes(program(user)) if drawn.random() < 0.6 else []
        for pid in (victims or processes("_trial", str(run)))[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        before = answered(run) + 1
    out, err = supervisor.communicate()
    assert supervisor.returncode == 0, err
    assert killed, out
    assert scores(run) == expected
    assert set(times_answered(run).values()) == {1}
    until(lambda: not processes(program(user)), "no server")
    until(lambda: not list(user.memory.iterdir()), "an empty memory")


def test_a_server_that_cannot_score_gives_up_what_it_cannot_do(user: Workspace) -> None:
    run = user.folder / "writes only"
    options = list(engine(user, 0.0))
    options[-1] = options[-1].replace("--seconds 0.0", "--seconds 0.0 --writes-only")
    user.call(*asked(user, run, *options), status=1)
    found = results(run)
    assert found["missing"].keys() == {"tiny_choice", "tiny_cloze", "tiny_prose"}
    assert all("no log-probabilities" in why for why in found["missing"].values())
    assert found["results"].keys() == {"tiny_sums", "tiny_talk"}


def test_a_server_that_never_starts_is_told_of_once(user: Workspace) -> None:
    run = user.folder / "never starts"
    args = json.dumps({"command": "sh -c 'echo out of luck; exit 4' {model} {port}"})
    done = user.call(*asked(user, run, "--engine", "server", "--engine-args", args), status=1)
    assert "out of luck" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_wrong_command_starts_no_run(user: Workspace) -> None:
    run = user.folder / "no run"
    args = json.dumps({"command": "serve {model}"})
    done = user.call(*asked(user, run, "--engine", "server", "--engine-args", args), status=2)
    assert "[engine.args] command has no {port}" in done.stderr
    assert not run.exists()
