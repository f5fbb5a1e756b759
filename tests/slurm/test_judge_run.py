"""A checkpoint that is the judge answers in a run of its own, on a real controller."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from coordinate_eval.coordinator.inputs.checkpoints import judge_checkpoint
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.judging.judge_run import JudgeRun
from coordinate_eval.errors import UserError
from coordinate_eval.records import Answer, Question, QuestionKind
from tests.dev_cluster import DevCluster
from tests.runs import TASKS, Workspace, begun, kill, processes, results, scores, until
from tests.tiny import tiny_model

TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def workspace(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def judge(workspace: Workspace) -> Path:
    """A checkpoint with a chat template."""
    folder = workspace.folder / "a judge"
    shutil.copytree(tiny_model(), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


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


RUBRIC = """\
prompts:
  rating:
  - {role: system, content: Rate the answer.}
  - {role: user, content: "{{ question }} {{ answer }}"}
patterns: '(\\d+)'
scale: [0, 100]
"""


def judged_suite(workspace: Workspace) -> Path:
    """A dataset that a judge rates, and one that it does not."""
    (workspace.folder / "rating.yaml").write_text(RUBRIC)
    suite = {
        "include_path": [str(TASKS)],
        "datasets": [
            {"name": "judged", "task": "tiny_sums", "rubric": "rating.yaml"},
            {"name": "tiny_cloze", "task": "tiny_cloze"},
        ],
    }
    path = workspace.folder / "judged.yaml"
    path.write_text(yaml.safe_dump(suite))
    return path


@pytest.mark.parametrize("killed", [None, "_judge"])
def test_a_suite_with_a_judge_of_one_s_own(
    workspace: Workspace, judge: Path, killed: str | None
) -> None:
    pause = workspace.pause(f"judged {killed}")
    run = workspace.submit(
        judged_suite(workspace), "--run-dir", workspace.folder / f"judged {killed}",
        COORDINATE_EVAL_JUDGE_CHECKPOINT=str(judge),
        COORDINATE_EVAL_JUDGE_ENGINE_ARGS=json.dumps(pause.engine_args),
    )  # fmt: skip
    if killed is not None:
        until(lambda: list(run.glob("judge/*/run/outputs/*/*.part")), "answers of the judge")
        kill(processes(killed, str(run)))
    pause.end()
    found = scores(run)
    assert set(found) == {"judged", "tiny_cloze"}
    judged = json.loads((run / "results" / "judged.json").read_text())["judge"]
    assert (judged["model"], judged["questions"]) == ("a judge", 11)
    assert len(list(run.glob("judge/*/run"))) == 1
    (answers_of,) = run.glob("judge/*/run")
    assert scores(answers_of)
    assert results(run)["ledger"]["judge"]["gpu_seconds"] > 0
