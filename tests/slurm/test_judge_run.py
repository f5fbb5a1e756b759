"""A checkpoint that is the judge answers in a job of the run, on a real controller."""

import json
import shutil
from pathlib import Path

import pytest

from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from tests.dev_cluster import DevCluster
from tests.own_judge import TEMPLATE, judged_suite, own_judge
from tests.runs import Pause, Workspace, kill, processes, results, scores, until
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def workspace(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def judge(workspace: Workspace) -> Path:
    return own_judge(workspace)


def submit(workspace: Workspace, name: str, judge: Path, pause: Pause) -> Path:
    return workspace.submit(
        judged_suite(workspace), "--run-dir", workspace.folder / name, **by(judge, pause)
    )


def by(judge: Path, pause: Pause) -> dict[str, str]:
    """The environment that names a judge."""
    return {
        "COORDINATE_EVAL_JUDGE_CHECKPOINT": str(judge),
        "COORDINATE_EVAL_JUDGE_ENGINE_ARGS": json.dumps(pause.engine_args),
    }


def answering(run: Path) -> None:
    """Wait until the judge of a run answers."""
    until(
        lambda: any(part.stat().st_size for part in run.glob("answers/judged/*.part")),
        "answers of its judge",
        run,
    )


def check(run: Path, judge: str) -> None:
    """A judge that is a checkpoint has answered once, on GPUs of its own."""
    judged = json.loads((run / "results" / "judged.json").read_text())["judge"]
    assert (judged["model"], judged["questions"]) == (judge, 11)
    assert results(run)["ledger"]["judge"]["gpu_seconds"] > 0
    until(lambda: not processes("_serve", str(run)), "an end of its server")


@pytest.fixture(scope="module")
def judged(workspace: Workspace, judge: Path) -> Path:
    """A run whose answers a checkpoint has rated."""
    pause = workspace.pause("judged")
    pause.end()
    run = submit(workspace, "judged", judge, pause)
    assert set(scores(run)) == {"judged", "tiny_cloze"}
    return run


def test_a_suite_with_a_judge_of_one_s_own(judged: Path) -> None:
    check(judged, "a judge")


def test_a_server_is_killed_that_answers(workspace: Workspace, judge: Path, judged: Path) -> None:
    for folder in (workspace.folder / "cache").glob("judged-*"):
        shutil.rmtree(folder)  # it has answered nothing yet
    pause = workspace.pause("killed")
    run = submit(workspace, "killed", judge, pause)
    answering(run)
    kill(processes("_serve", str(run)))
    pause.end()
    assert scores(run) == scores(judged)
    check(run, "a judge")


def test_another_checkpoint_rates_the_same_answers_and_is_cancelled(
    workspace: Workspace, judge: Path, judged: Path
) -> None:
    other = workspace.folder / "another judge"
    shutil.copytree(judge, other)
    (other / "chat_template.jinja").write_text(TEMPLATE + " ")
    pause = workspace.pause("another judge")
    before = results(judged)
    done = workspace.call("rescore", judged, status=0, **by(other, pause))
    run = Path(done.stdout.rstrip("\n"))
    assert "gets up to" in done.stderr
    answering(run)
    assert read_run(RunDir(run)).judge_place.gpus == 1
    workspace.call("cancel", run)
    until(lambda: not processes("_serve", str(run)), "an end of its server")
    pause.end()
    workspace.call("resume", run)
    until(lambda: results(run)["complete"], "all results, in place of those of the cancelled run")
    check(run, "another judge")
    found = results(run)
    assert found["ledger"]["total_gpu_seconds"] == 0
    assert list(found["rescored"]["judges"]) == ["judged"]
    assert found["results"]["tiny_cloze"] == before["results"]["tiny_cloze"]
    assert results(judged) == before


def test_a_judge_that_cannot_work_is_refused_before_anything_is_made(
    workspace: Workspace, judge: Path, judged: Path
) -> None:
    huge = workspace.folder / "huge"
    shutil.copytree(judge, huge)
    config = json.loads((huge / "config.json").read_text())
    (huge / "config.json").write_text(json.dumps(config | {"head_dim": 10**7}))
    there = set(judged.parent.iterdir())
    for settings, says in (
        ({"CHECKPOINT": str(tiny_model())}, "has no chat template"),
        ({"CHECKPOINT": str(huge)}, "GiB"),
        ({"ENGINE_ARGS": '{"wings": 2}'}, "wings"),
        ({"MAX_REQUESTS": "10"}, "up to 11 questions"),
    ):
        given = {"CHECKPOINT": str(judge)} | settings
        environ = {f"COORDINATE_EVAL_JUDGE_{name}": value for name, value in given.items()}
        done = workspace.call("rescore", judged, status=2, **environ)
        assert says in done.stderr, done.stderr
    assert set(judged.parent.iterdir()) == there
