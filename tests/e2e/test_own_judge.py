"""A checkpoint that judges, on one machine: a job of the run, with the same protections."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.own_judge import judged_suite, own_judge
from tests.runs import (
    PATIENCE_SECONDS,
    TASKS,
    Workspace,
    command,
    processes,
    published,
    results,
    scores,
    until,
)
from tests.tiny import tiny_model

JOBS = ("_keep", "_trial", "_judge", "_serve", "_build", "_score")


def asked(user: Workspace, run: Path) -> tuple[object, ...]:
    return "run", tiny_model(), "--suite", judged_suite(user), "--run-dir", run


def judged_by(user: Workspace, **engine_args: object) -> dict[str, str]:
    return {
        "COORDINATE_EVAL_JUDGE_CHECKPOINT": str(own_judge(user)),
        "COORDINATE_EVAL_JUDGE_ENGINE_ARGS": json.dumps(engine_args),
    }


def nothing_is_left(user: Workspace, run: Path) -> None:
    """No process of the run or of its judge's server, and nothing in the memory of the node."""
    until(
        lambda: not [pid for job in JOBS for pid in processes(job, str(run))], "an end of its jobs"
    )
    until(lambda: not list(user.memory.iterdir()), "an empty memory")


def test_a_judge_is_interrupted_with_the_run_that_asks_and_goes_on_with_it(
    user: Workspace,
) -> None:
    run, pause = user.folder / "judged and interrupted", user.pause("judged")
    judged = judged_by(user, **pause.engine_args)
    # In a group of its own, all of which hears of Ctrl-C, as at a terminal.
    driver = subprocess.Popen(
        command(*asked(user, run)),
        env=user.environ | judged,
        cwd=TASKS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background lets them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until(
        lambda: any(part.stat().st_size for part in run.glob("answers/judged/*.part")),
        "answers of the judge",
    )
    before = published(run)
    os.killpg(driver.pid, signal.SIGINT)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err
    assert driver.returncode == 130, err
    nothing_is_left(user, run)
    pause.end()
    user.call("resume", run)
    assert scores(run).keys() == {"judged", "tiny_cloze"}
    assert results(run)["judge"]["judged"]["model"] == "a judge"
    assert results(run)["ledger"]["judge"]["gpu_seconds"] > 0
    assert set(before) <= set(published(run))
    nothing_is_left(user, run)
