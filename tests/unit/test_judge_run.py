"""The run in which a checkpoint judges: begun whatever the scheduler does, and not when cancelled.

`tests/slurm/test_judge_run.py` has such runs as a whole.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from tests.decisions import make_run
from tests.judges import question
from tests.reviewer import FakeCluster
from tests.run_dirs import write_requests

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Hold, Job, JobLimits, State, TaskStatus
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites.located_yaml import Place
from coordinate_eval.coordinator.inputs.suites.rubric import load
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    JudgeProgress,
    read_run,
    write_planned,
    write_run,
)
from coordinate_eval.coordinator.workers.judging import judge
from coordinate_eval.coordinator.workers.judging.judge_run import JudgeRun
from coordinate_eval.errors import ClusterError, ClusterSilent, SubmitLater, SubmitRefused
from coordinate_eval.evaluators.judged.verdicts import find_verdict
from coordinate_eval.records import Answer, ItemRequests, Key, Request, RequestKind, Response, Shard

ITEMS = 10


class Reluctant(FakeCluster):
    """A scheduler that fails with these errors, one after the other, before it does as asked."""

    def __init__(self, *errors: ClusterError) -> None:
        super().__init__()
        self.errors = list(errors)
        self.seen: Callable[[], None] = lambda: None
        """Called at each poll."""
        self.cancelled: list[str] = []

    def poll(self, prefix: str) -> list[TaskStatus]:
        self.seen()
        if self.errors and not isinstance(self.errors[0], SubmitRefused):
            raise self.errors.pop(0)
        return super().poll(prefix)

    def submit(self, job: Job) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return super().submit(job)

    def cancel(self, job_ids: list[str]) -> None:
        self.cancelled += job_ids


class Asking:
    """A run whose questions are written, and the run of its judge, which has no supervisor yet."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dir = RunDir(folder / "run")
        self._patch = monkeypatch
        monkeypatch.setattr(clusters, "SILENCE_SECONDS", 0.0)
        monkeypatch.setattr(judge, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(judge, "PROGRESS_SECONDS", 0.0)
        monkeypatch.setattr(judge, "POLL_SECONDS", 0.001)

    def make(self, patience_seconds: float = 1000.0) -> None:
        settings = Settings.model_validate(
            {
                "cache_dir": str(self.dir.root.parent / "cache"),
                "judge": {"checkpoint": "/judge", "model": "judge", "revision": "0"},
                "supervisor": {"patience_seconds": patience_seconds},
            }
        )
        shard = Shard(dataset="a", start=0, stop=ITEMS, gpu_seconds=1, metric_cpu_seconds=0)
        run = make_run(asks=["a"], judged=["a"], shards=[shard], settings=settings)
        write_run(self.dir, run)
        write_planned(self.dir, run)
        self.run = read_run(self.dir)
        _files.write(self.dir.supervisors_folder / "1.json", "{}")
        self.questions = [question(f"item {n}", self.run.settings.judge.name) for n in range(ITEMS)]
        for portion in all_portions(self.run):
            lines = "".join(q.line() for q in self.questions[portion.start : portion.stop])
            _files.write(self.dir.questions(portion), lines)
        self.inner = RunDir(self.judge_run().root)
        self.made = make_run(id="judge", nonce="2")
        write_run(self.inner, self.made)

    def judge_run(self) -> JudgeRun:
        return JudgeRun(self.dir, self.run, self.questions)

    def uses(self, cluster: FakeCluster) -> None:
        """Have this scheduler, and a judge's run that answers as soon as it has a supervisor."""

        def answers(_: JudgeRun) -> list[Answer]:
            found = [Answer(id=q.id, passed=True, result="5", seconds=0) for q in self.questions]
            return found if cluster.submitted else []

        self._patch.setattr(clusters, "by_name", lambda name, settings: cluster)
        self._patch.setattr(JudgeRun, "new_answers", answers)

    def said(self) -> JudgeProgress:
        return _files.read_record(self.dir.judge, JudgeProgress)


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asking:
    asking = Asking(tmp_path, monkeypatch)
    asking.make()
    return asking


SILENT = ClusterSilent("squeue got no answer: Unable to contact slurm controller")
FULL = SubmitLater("QOSMaxSubmitJobPerUserLimit\nthe command")


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    "errors", [(SILENT, SILENT), (FULL, FULL), (SILENT, FULL), (ClusterError("squeue failed"),)]
)
def test_a_scheduler_that_is_silent_or_full_is_asked_again(
    asking: Asking, errors: tuple[ClusterError, ...], stopped: bool
) -> None:
    if stopped:
        _files.write(asking.inner.results, json.dumps({"complete": False, "missing": {}}))
    cluster = Reluctant(*errors)
    said: list[str] = []
    cluster.seen = lambda: said.append(asking.said().said if said else "")  # of the try before
    asking.uses(cluster)
    assert judge.run_judge(asking.dir) == 0
    assert [job.name for job in cluster.submitted] == [jobs.supervisor_name(asking.made, 1)]
    for words, error in zip(said[1:], errors, strict=True):
        assert words.endswith(str(error).partition("\n")[0])
        assert "asked again about the judge's run" in words
    assert (asking.said().state, asking.said().said, asking.said().left) == ("asking", "", 0)


def test_a_supervisor_that_was_not_launched_is_replaced(asking: Asking) -> None:
    cluster = Reluctant()
    lost = TaskStatus(
        name=jobs.supervisor_name(asking.made, 1), job_id="7", state=State.PENDING, held=Hold.LAUNCH
    )
    cluster.poll = lambda prefix: [lost]  # type: ignore[method-assign]
    asking.uses(cluster)
    assert judge.run_judge(asking.dir) == 0
    assert (cluster.cancelled, len(cluster.submitted)) == (["7"], 1)


def test_a_scheduler_that_would_refuse_it_again_is_not(asking: Asking) -> None:
    asking.uses(Reluctant(SubmitRefused("Invalid account")))
    assert judge.run_judge(asking.dir) == 1
    assert (asking.said().state, asking.said().said) == ("silent", "Invalid account")


def test_without_a_supervisor_of_the_run_that_asks_nobody_waits_for_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Asking(tmp_path, monkeypatch)
    asking.make(patience_seconds=0.01)

    class Silent(FakeCluster):
        def poll(self, prefix: str) -> list[TaskStatus]:
            raise SILENT

    asking.uses(Silent())
    assert judge.run_judge(asking.dir) == 0
    assert asking.said().left == ITEMS


class CancelledBefore(Reluctant):
    """The run that asks is cancelled before this scheduler has a job of its judge's run."""

    def __init__(self, asking: Asking) -> None:
        super().__init__()
        # As `cancel` does that looked for the judge's run before that was made.
        self.seen = lambda: _files.write(asking.dir.cancelled, "")


class CancelledMeanwhile(Reluctant):
    """It is cancelled while this scheduler takes the job."""

    def __init__(self, asking: Asking, *errors: ClusterError) -> None:
        super().__init__()
        self._asking, self._answers_with = asking, errors

    def submit(self, job: Job) -> str:
        _files.write(self._asking.dir.cancelled, "")
        job_id = super().submit(job)
        for error in self._answers_with:
            raise error
        return job_id


def test_nothing_is_begun_for_a_run_that_is_cancelled(asking: Asking) -> None:
    cluster = CancelledBefore(asking)
    asking.uses(cluster)
    asking.judge_run().start()
    assert cluster.submitted == []
    assert asking.inner.cancelled.exists()
    cluster.seen = lambda: None
    for each in (asking.dir, asking.inner):  # as `resume` does
        each.cancelled.unlink()
    asking.judge_run().start()
    assert len(cluster.submitted) == 1
    assert not asking.inner.cancelled.exists()


def test_what_was_begun_for_a_run_that_is_cancelled_meanwhile_ends(asking: Asking) -> None:
    cluster = CancelledMeanwhile(asking)
    asking.uses(cluster)
    asking.judge_run().start()
    assert cluster.cancelled == ["1"]
    assert asking.inner.cancelled.exists()


def test_a_job_that_may_have_been_begun_meanwhile_finds_its_run_cancelled(asking: Asking) -> None:
    asking.uses(CancelledMeanwhile(asking, SILENT))
    with pytest.raises(ClusterSilent):
        asking.judge_run().start()
    assert asking.inner.cancelled.exists()


def test_its_supervisor_asks_for_what_is_allowed_now(asking: Asking) -> None:
    """A maintenance was announced since the run that asks was created."""
    cluster = Reluctant()
    cluster.limited = JobLimits(cpu_minutes=30, cpu_why="partition cpu")
    asking.uses(cluster)
    asking.judge_run().start()
    assert [job.minutes for job in cluster.submitted] == [30]


def test_an_answer_begins_with_the_thinking_that_the_template_has_begun(
    asking: Asking, tmp_path: Path
) -> None:
    """Cut off by its limit, it would else be rated by a number that the judge only weighed."""
    template = tmp_path / "chat_template.jinja"
    template.write_text("{{ messages[0].content }}<think>\n")
    checkpoint = asking.made.checkpoint.model_copy(update={"files": [str(template)]})
    shard = Shard(dataset="a", start=0, stop=3, gpu_seconds=1, metric_cpu_seconds=0)
    (asking.inner.root / "run.json").unlink()
    made = make_run(checkpoint=checkpoint, shards=[shard], max_length=100)
    write_run(asking.inner, made)
    write_planned(asking.inner, made)
    keys = [Key(dataset="a", item=n, task="q", doc=n, prompt_hash="p") for n in range(3)]
    requests = [
        Request(**key.model_dump(), kind=RequestKind.GENERATE, tokens=[1] * tokens, max_tokens=50)
        for key, tokens in zip(keys, (5, 5, 60), strict=True)
    ]
    write_requests(asking.inner, "a", [ItemRequests.of([each]).line() for each in requests])
    said: list[tuple[str, Literal["stop", "length"]]]
    said = [("[[3]]? No.</think>[[8]]", "stop"), ("Is it [[3]]?", "length"), ("[[1]]", "length")]
    lines = [
        Response(**key.model_dump(), text=words, tokens=7, finish=end).line()
        for key, (words, end) in zip(keys, said, strict=True)
    ]
    _files.write(asking.inner.published("outputs", shard.span), "".join(lines))
    answers = list(asking.judge_run().new_answers())
    assert [(each.passed, each.cut) for each in answers] == [
        (True, False),
        (True, True),
        (False, False),
    ]
    rubric = load("mt_bench", Place("suite.yaml", 1))
    assert [find_verdict(each.result, rubric) for each in answers[:2]] == [[8.0], None]
    assert answers[2].result.startswith("refused: ")
