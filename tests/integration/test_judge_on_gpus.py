"""The job of a judge that is a checkpoint: the server that it starts, asks and ends."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.judges import question
from tests.own_judge import TEMPLATE
from tests.runs import processes, until
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import named
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgePlace, JudgeProgress, Run
from coordinate_eval.coordinator.workers.judging.judge import run_judge
from coordinate_eval.records import Answer, Shard

ITEMS = 12
LONG = 7
"""The item whose question is longer than the judge's context."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "a judge"
    shutil.copytree(tiny_model(), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


class Asking:
    """A run with two shards, each of whose items asks a question."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.dir = RunDir(folder / "run")
        self.memory = folder / "memory"
        self.memory.mkdir()
        self._cache, self._checkpoint = folder / "cache", checkpoint
        _files.write(self.dir.supervisors_folder / "1.json", "{}")
        self.use()
        for portion in all_portions(self.run):
            lines = [self.question(n) for n in range(portion.start, portion.stop)]
            _files.write(self.dir.questions(portion), "".join(each.line() for each in lines))

    def question(self, item: int) -> Any:
        words = "word " * (5000 if item == LONG else 5)
        return question(f"item {item} {words}", self.run.settings.judge.name, max_tokens=2048)

    def use(self, **engine_args: object) -> None:
        """Have the judge's engine get these arguments."""
        judge = {"checkpoint": str(self._checkpoint), "engine_args": engine_args}
        settings = Settings.model_validate(
            {
                "cache_dir": str(self._cache),
                "engine": {"name": "simulated"},
                "judge": judge,
                "stage": {"where": f"local {self.memory}"},
            }
        )
        shards = [
            Shard(dataset="a", start=n, stop=n + 6, gpu_seconds=1, metric_cpu_seconds=0)
            for n in (0, 6)
        ]
        self.run: Run = make_run(
            asks=["a"],
            judged=["a"],
            shards=shards,
            settings=named(settings),
            judge_place=JudgePlace(gpus=2),
            python=sys.executable,
        )
        _files.write_record(self.dir.run, self.run)

    def ask(self) -> JudgeProgress:
        run_judge(self.dir)
        return _files.read_record(self.dir.judge, JudgeProgress)

    def answers(self) -> dict[str, Answer]:
        paths = [self.dir.published("answers", portion) for portion in all_portions(self.run)]
        lines = [line for path in paths if path.exists() for line in _files.lines(path)]
        return {each.id: each for each in map(Answer.model_validate_json, lines)}


@pytest.fixture
def asking(tmp_path: Path, checkpoint: Path) -> Asking:
    return Asking(tmp_path, checkpoint)


def test_it_answers_all_questions_and_leaves_nothing_behind(asking: Asking) -> None:
    progress = asking.ask()
    assert (progress.state, progress.said, progress.left) == ("asking", "", 0)
    found = asking.answers()
    assert len(found) == ITEMS
    refused = [each for each in found.values() if not each.passed]
    assert [each.id for each in refused] == [asking.question(LONG).id]
    assert "context" in refused[0].result
    assert all(each.result and each.tokens > 5 for each in found.values() if each.passed)
    assert (progress.gpu_seconds > 0, progress.nodes) == (True, [])
    assert not processes("_serve", str(asking.dir.root))
    assert not list(asking.memory.rglob("*.safetensors"))


def test_a_server_that_ends_costs_no_answer_and_is_started_again(asking: Asking) -> None:
    asking.use(fail_after=5)
    first = asking.ask()
    assert (first.state, first.asked_no_more) == ("asking", False)
    assert "the judge's server ended (exit status 1)" in first.said
    assert first.left >= ITEMS - 5 - 1
    asking.use()
    second = asking.ask()
    assert (second.state, second.said, second.left) == ("asking", "", 0)
    assert second.answered == ITEMS
    assert second.gpu_seconds > first.gpu_seconds
    assert len(asking.answers()) == ITEMS


def test_what_it_answered_to_an_earlier_run_takes_no_server(
    asking: Asking, tmp_path: Path, checkpoint: Path
) -> None:
    asking.ask()
    answered = ITEMS - 1  # a refusal is asked again
    until(lambda: len(list((tmp_path / "cache").rglob("*.json"))) == answered, "kept answers")
    again = Asking.__new__(Asking)
    again.__dict__.update(asking.__dict__)
    again.dir = RunDir(tmp_path / "another run")
    _files.write(again.dir.supervisors_folder / "1.json", "{}")
    again.use(fail_after=0)
    for portion in all_portions(again.run):
        some = [n for n in range(portion.start, portion.stop) if n != LONG]
        lines = "".join(again.question(n).line() for n in some)
        _files.write(again.dir.questions(portion), lines)
    progress = again.ask()
    assert (progress.said, progress.left, progress.kept) == ("", 0, answered)


def test_a_checkpoint_that_has_changed_is_asked_nothing(asking: Asking, checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE + " ")
    progress = asking.ask()
    assert progress.asked_no_more
    assert "has changed since this run began" in progress.said
    assert asking.answers() == {}
