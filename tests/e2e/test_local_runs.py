"""Whole runs on this machine: what is killed, interrupted or asked twice changes no score."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.images import in_container, make_image
from tests.runs import (
    PATIENCE_SECONDS,
    TASKS,
    Workspace,
    begun,
    command,
    kill,
    processes,
    published,
    results,
    scores,
    until,
)
from tests.tiny import tiny_model

DATASETS = ("tiny_choice", "tiny_code", "tiny_sums", "tiny_talk")
JOBS = ("_keep", "_trial", "_metric", "_score")


@pytest.fixture(scope="module")
def finished(user: Workspace) -> Path:
    """The directory of an undisturbed run."""
    run = user.folder / "undisturbed"
    user.call(*asked(user, run), "--json", COORDINATE_EVAL_AFTER_RUN='["printf", "%s ended"]')
    nothing_is_left(user, run)
    return run


@pytest.fixture(scope="module")
def expected(finished: Path) -> dict[str, Any]:
    return scores(finished)


def asked(user: Workspace, run: Path, engine_args: tuple[str, ...] = ()) -> tuple[object, ...]:
    """The command that asks for these scores in this directory."""
    suite = user.suite(*DATASETS)
    return "run", tiny_model(), "--suite", suite, "--run-dir", run, *engine_args


def nothing_is_left(user: Workspace, run: Path) -> None:
    """No process of the run, and nothing in the memory of the node."""
    until(lambda: not jobs_of(run), f"no processes, but there are {jobs_of(run)}")
    until(lambda: not list(user.memory.iterdir()), "an empty memory")


def jobs_of(run: Path) -> list[int]:
    return [pid for job in JOBS for pid in processes(job, str(run))]


def holders(run: Path) -> list[int]:
    """The processes that hold the weights of a run, or are about to."""
    return [pid for job in ("_trial", "_keep") for pid in processes(job, str(run))]


def test_asking_again_runs_nothing(
    user: Workspace, finished: Path, expected: dict[str, Any]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    done = user.call(*asked(user, finished), "--json")
    assert json.loads(done.stdout)["results"] == expected
    resumed = user.call("resume", finished, "--json")
    assert resumed.stdout == done.stdout
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_the_users_command_is_called_when_the_run_has_ended(finished: Path) -> None:
    assert (finished / "logs" / "after_run.log").read_text() == f"{finished} ended"


def test_every_request_is_answered_once(finished: Path) -> None:
    seen = [json.loads(line) for path in published(finished) for line in path.open()]
    keys = [(r["task"], r["doc"], r.get("index"), r.get("repeat")) for r in seen]
    indices = [json.loads(path.read_text()) for path in finished.glob("requests/*.json")]
    assert len(set(keys)) == len(keys)
    turns = sum(1 + len(response.get("turns", [])) for response in seen)
    assert turns == sum(index["requests"] for index in indices)
    assert results(finished)["items"] == {index["dataset"]: index["items"] for index in indices}


def test_what_is_killed_and_interrupted_loses_nothing(
    user: Workspace, expected: dict[str, Any]
) -> None:
    run, pause = user.folder / "killed", user.pause("killed")
    # In a group of its own, all of which hears of Ctrl-C, as at a terminal.
    supervisor = subprocess.Popen(
        command(*asked(user, run, pause.args)),
        env=user.environ,
        cwd=TASKS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background lets them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    begun(run)
    killed = [pid for job in ("_trial", "_keep") for pid in processes(job, str(run))[:1]]
    kill(killed)
    until(lambda: set(processes("_trial", str(run))) - {*killed}, "a trial that goes on", run)
    # Who holds the weights is killed, and who comes next has no time to hold them.
    kill(holders(run))
    os.killpg(supervisor.pid, signal.SIGINT)
    _, err = supervisor.communicate(timeout=PATIENCE_SECONDS)
    assert supervisor.returncode == 130, err
    assert "coordinate-eval resume" in err
    assert "Traceback" not in err
    nothing_is_left(user, run)
    assert not (run / "results.json").exists()

    supervisor = user.start("resume", run)
    until(lambda: processes("_trial", str(run)), "a trial", run)
    kill(holders(run))
    assert supervisor.stderr is not None
    supervisor.stderr.close()  # as where a connection ends
    supervisor.send_signal(signal.SIGHUP)
    supervisor.wait(PATIENCE_SECONDS)
    nothing_is_left(user, run)

    supervisor = user.start("resume", run)
    until(lambda: processes("_trial", str(run)), "a trial", run)
    kill(holders(run))
    supervisor.kill()
    supervisor.communicate()
    until(lambda: not jobs_of(run), "an end of its jobs")
    user.call("cancel", run)
    nothing_is_left(user, run)

    pause.end()
    done = user.call(*asked(user, run, pause.args), "--json")
    assert json.loads(done.stdout)["results"] == expected
    nothing_is_left(user, run)


def test_two_who_ask_at_once_disturb_nothing(user: Workspace, expected: dict[str, Any]) -> None:
    run = user.folder / "two"
    both = [user.start(*asked(user, run)) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode in (0, 1, 2), err
        assert "Traceback" not in err
    user.call(*asked(user, run))
    assert scores(run) == expected
    nothing_is_left(user, run)


def test_a_directory_of_another_run_is_refused(
    user: Workspace, finished: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_model(), tmp_path / "another"))
    (copy / "model.safetensors").touch()  # saved at another time: another checkpoint
    plain = ("--suite", user.suite(*DATASETS))
    at = ("--run-dir", finished)
    for args, word in (
        (("run", copy, *plain, *at), str(copy)),
        (("run", tiny_model(), "--suite", user.suite("tiny_cloze"), *at), "tiny_cloze"),
        (("run", tiny_model(), *plain, *at, *user.pause("nothing").args), "simulated"),
    ):
        done = user.call(*args, status=2)
        assert word in done.stderr
        assert "--run-dir" in done.stderr
        assert done.stdout == ""


def test_the_doctor_asks_a_job(user: Workspace) -> None:
    asked = ("doctor", "--submit", "--json", "--cluster", "local")
    done = user.call(*asked, HF_HUB_OFFLINE="1")
    _, there = json.loads(done.stdout)["answers"]
    assert {each["check"] for each in there["findings"]} >= {"runs_dir", "harness", "[stage] where"}


def test_an_image_that_does_not_fit_ends_a_run_before_a_gpu_is_taken(user: Workspace) -> None:
    image = make_image(user.folder / "image without an engine", engine="/opt/nothing")
    run = user.folder / "run in an image"
    words = asked(user, run, ("--engine", "vllm"))
    done = user.call(*words, status=1, **in_container("bubblewrap", image))
    assert "[container] image" in " ".join(done.stdout.split())
    assert [path.name for path in run.glob("jobs/*trial*")] == []
    logs = "".join(path.read_text() for path in run.glob("logs/*keep0*"))
    assert f"image {image} has no" in logs
    nothing_is_left(user, run)
