"""A limit on how many jobs run at once, at which a run's own keepers would hold up its trials."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.decisions import (
    DIR,
    KEEP,
    NODES,
    NOTHING,
    RUN,
    SPANS,
    TRIAL,
    all_submits,
    facts,
    make_run,
    shards,
    stage,
    submits,
    submitted,
    tasks,
)
from tests.incidents import Enough
from tests.plan_examples import planned
from tests.reviewer import FakeCluster

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, State, TaskStatus, Waits
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import StageProgress
from coordinate_eval.coordinator.supervisor import decide_rounds
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decide_jobs import holds_up_trials
from coordinate_eval.coordinator.supervisor.loop import Supervisor

PATIENCE = RUN.settings.supervisor.patience_seconds


def at_limit(found: list[TaskStatus]) -> list[TaskStatus]:
    return [task.model_copy(update={"waits": Waits.JOB_LIMIT}) for task in found]


def test_the_limit_holds_trials_up_where_they_have_waited_in_vain_and_none_runs() -> None:
    pending = tasks(TRIAL[0], State.PENDING, State.PENDING)
    keepers = [*tasks(KEEP[0], State.RUNNING), *at_limit(tasks(KEEP[1], State.PENDING))]
    known = facts(
        now=90 + PATIENCE,
        submitted=submitted(*KEEP, TRIAL[0]),
        tasks=[*keepers, *at_limit(pending)],
    )
    assert holds_up_trials(RUN, known)
    assert not holds_up_trials(RUN, replace(known, now=89 + PATIENCE))
    assert not holds_up_trials(RUN, replace(known, tasks=[*keepers, *pending]))
    running = tasks(TRIAL[1], State.RUNNING)
    assert not holds_up_trials(RUN, replace(known, tasks=[*at_limit(pending), *running]))


def test_at_the_limit_nodes_that_have_no_keeper_yet_get_one_job_each() -> None:
    actions = decide(RUN, DIR, facts(job_limit=True))
    assert [(job.name, job.node, job.count, job.gpus) for job in all_submits(actions)] == [
        (name, node, 1, 2) for name, node in zip(TRIAL, NODES, strict=True)
    ]
    assert all("_node" in job.argv for job in all_submits(actions))
    copied = facts(
        job_limit=True,
        submitted=submitted(*KEEP),
        tasks=[task for name in KEEP for task in tasks(name, State.RUNNING)],
        stages={(0, "n1"): stage(1000, 1000, 10, "ready")},
    )
    assert [job.count for job in all_submits(decide(RUN, DIR, copied))] == [2]


def test_at_the_limit_nothing_scores_in_the_place_of_trials() -> None:
    running = facts(
        submitted=submitted(*TRIAL),
        tasks=tasks(TRIAL[0], State.RUNNING),
        claimable={**NOTHING, "results": [SPANS[2]]},
    )
    assert any("score" in job.name for job in all_submits(decide(RUN, DIR, running)))
    limited = replace(running, job_limit=True)
    assert not all_submits(decide(RUN, DIR, limited))
    over = replace(limited, unpublished=[], tasks=[])
    assert [job.name for job in all_submits(decide(RUN, DIR, over))] == ["ce-r.0-score0"]
    assert not submits(decide(RUN, DIR, over))


class Limited(FakeCluster):
    """A scheduler that runs as many jobs at once as there are nodes. Keepers copy at once."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__()
        self._dir = run_dir
        self.left: list[Job] = []

    def submit(self, job: Job) -> str:
        if "_node" in job.argv and len(self.left) < len(self.free):
            raise Enough
        assert len(self.submitted) < 20, "keepers hold up trials again and again"
        if "_keep" in job.argv:
            ready = StageProgress(
                state="ready", done_bytes=1, total_bytes=1, started=0, updated=time.time()
            )
            _files.write_record(self._dir.stage(_round_of(job), str(job.node)), ready)
        self.left.append(job)
        super().submit(job)
        return job.name

    def poll(self, prefix: str) -> list[TaskStatus]:
        self.left = [job for job in self.left if not self._is_released(job)]
        return [
            TaskStatus(
                name=job.name,
                job_id=job.name,
                index=index,
                state=State.PENDING if late else State.RUNNING,
                waits=Waits.JOB_LIMIT if late else Waits.TURN,
            )
            for place, job in enumerate(self.left)
            for late in [place >= len(self.free)]
            for index in range(job.count)
        ]

    def cancel(self, job_ids: list[str]) -> None:
        ended = {job_id.rpartition("_")[0] for job_id in job_ids} | set(job_ids)
        self.left = [job for job in self.left if job.name not in ended]

    def _is_released(self, job: Job) -> bool:
        return "_keep" in job.argv and self._dir.released(_round_of(job), str(job.node)).exists()


def _round_of(job: Job) -> int:
    return int(job.argv[job.argv.index("--round") + 1])


def test_a_run_that_its_keepers_have_held_up_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir(tmp_path)
    settings = {"supervisor": {"poll_seconds": 0.001, "patience_seconds": 1e-9}, "nodes": "2"}
    settings |= {"priors_dir": str(tmp_path / "priors")}
    run = make_run(folder=str(tmp_path), settings=settings, shards=shards(*[1.0] * 8))
    _files.write_record(run_dir.run, run)
    _files.write_record(run_dir.plan, planned())
    monkeypatch.setattr(decide_rounds, "ROUND_PAUSE_SECONDS", 0.0)
    cluster = Limited(run_dir)
    told: list[str] = []
    with pytest.raises(Enough):
        Supervisor(run_dir, cluster, tell=told.append).run()
    assert sum("limit on how many jobs run at once" in event for event in told) == 1
    assert {"_keep" in job.argv for job in cluster.submitted if _round_of(job) == 0} == {
        True,
        False,
    }
