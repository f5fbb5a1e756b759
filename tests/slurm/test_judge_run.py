"""A checkpoint that is the judge answers in a run of its own, on a real controller."""

import json
import shutil
from pathlib import Path

import pytest

from coordinate_eval.coordinator.inputs.checkpoints import judge_checkpoint
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.judging.judge_run import JudgeRun
from coordinate_eval.errors import UserError
from coordinate_eval.records import Answer, Question, QuestionKind
from tests.dev_cluster import DevCluster
from tests.own_judge import TEMPLATE, judged_suite, own_judge
from tests.runs import Pause, Workspace, begun, kill, processes, results, scores, until
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def workspace(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def judge(workspace: Workspace) -> Path:
    return own_judge(workspace)


@pytest.fixture(scope="module")
def finished(workspace: Workspace) -> RunDir:
    """A run that has ended."""
    run_dir = RunDir(workspace.submit(workspace.suite("tiny_sums")))
    scores(run_dir.root)
    return run_dir


def question(number: int, words: int = 5) -> Question:
    messages = [
        {"role": "system", "content": "Rate the answer from 1 to 10."},
        {"role": "user", "content": f"The answer is {number}. " + "word " * words},
    ]
    content = {"messages": messages, "temperature": 0.0, "max_tokens": 2048}
    return Question(
        id=f"{number:02}", kind=QuestionKind.JUDGE, content=json.dumps(content), judge="a judge"
    )


def asked_by(run_dir: RunDir, judge: Path, **settings: object) -> Run:
    """A run whose settings name a judge."""
    run = read_run(run_dir)
    chosen = run.settings.judge.model_copy(update={"checkpoint": str(judge), **settings})
    named = judge_checkpoint.named(run.settings.model_copy(update={"judge": chosen}))
    return run.model_copy(update={"settings": named})


def asking(run_dir: RunDir, judge: Path, **settings: object) -> JudgeRun:
    """The judge's run for twelve questions, of which one is too long."""
    questions = [question(n, words=5 if n != 7 else 500) for n in range(12)]
    return JudgeRun(run_dir, asked_by(run_dir, judge, **settings), questions)


def answers(asked: JudgeRun) -> dict[str, Answer]:
    found: dict[str, Answer] = {}

    def all_there() -> bool:
        asked.check_goes_on()
        found.update({answer.id: answer for answer in asked.new_answers()})
        return len(found) == 12

    until(all_there, "all answers")
    return found


def test_a_checkpoint_answers_also_if_its_run_is_killed(
    finished: RunDir, workspace: Workspace, judge: Path
) -> None:
    pause = workspace.pause("a judge")
    asked = asking(finished, judge, engine_args=pause.engine_args)
    asked.start()
    begun(asked.root)
    asked.check_goes_on()
    kill(processes("_supervise", str(asked.root)))
    kill(processes("_trial", str(asked.root)))
    asked.start()  # by another judge job: it changes nothing, or brings the supervisor back
    pause.end()
    found = answers(asked)
    assert [answer.id for answer in found.values() if not answer.passed] == ["07"]
    assert found["07"].result.startswith("refused: the question takes more than")
    assert all(answer.result and answer.tokens > 20 for answer in found.values())
    asked.start()  # complete: nothing is submitted
    assert answers(asking(finished, judge)) == found
    some = JudgeRun(finished, asked_by(finished, judge), [question(3), question(5)])
    assert some.root == asked.root


def test_a_judge_that_has_changed_is_refused(
    finished: RunDir, workspace: Workspace, judge: Path
) -> None:
    changed = workspace.folder / "changed"
    shutil.copytree(judge, changed)
    questions = [question(20)]
    asked = JudgeRun(finished, asked_by(finished, changed), questions)
    (changed / "chat_template.jinja").write_text(TEMPLATE + " ")
    with pytest.raises(UserError, match="has changed since this run began"):
        asked.start()


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


def answering(run: Path) -> Path:
    """Wait until the judge of a run answers; the run in which it does."""
    found = until(lambda: list(run.glob("judge/*/run/outputs/*/*.part")), "answers of its judge")
    return found[0].parents[2]


def check(run: Path, judge: str) -> None:
    """A judge that is a checkpoint has answered once, on GPUs of its own."""
    judged = json.loads((run / "results" / "judged.json").read_text())["judge"]
    assert (judged["model"], judged["questions"]) == (judge, 11)
    (answers_of,) = run.glob("judge/*/run")
    # It may still score its answers, which the run has; results of before may be of a cancellation.
    until(lambda: results(answers_of)["complete"], "an end of the judge's run")
    assert results(run)["ledger"]["judge"]["gpu_seconds"] > 0


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


def test_its_judge_s_job_is_killed(workspace: Workspace, judge: Path, judged: Path) -> None:
    for folder in (workspace.folder / "cache").glob("judged-*"):
        shutil.rmtree(folder)  # it has answered nothing yet
    pause = workspace.pause("killed")
    run = submit(workspace, "killed", judge, pause)
    answering(run)
    kill(processes("_judge", str(run)))
    pause.end()
    assert scores(run) == scores(judged)
    check(run, "a judge")


def test_another_checkpoint_rates_the_same_answers_and_is_killed(
    workspace: Workspace, judge: Path, judged: Path
) -> None:
    other = workspace.folder / "another judge"
    shutil.copytree(judge, other)
    (other / "chat_template.jinja").write_text(TEMPLATE + " ")
    pause = workspace.pause("another judge")
    before = results(judged)
    one = {"COORDINATE_EVAL_MAX_GPUS": "1"}
    done = workspace.call("rescore", judged, status=0, **by(other, pause), **one)
    run = Path(done.stdout.rstrip("\n"))
    assert "gets up to" in done.stderr
    answers_of = answering(run)
    assert read_run(RunDir(answers_of)).settings.max_gpus == 1
    kill(processes("_judge", str(run)) + processes("_trial", str(answers_of)))
    workspace.call("cancel", run)
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
