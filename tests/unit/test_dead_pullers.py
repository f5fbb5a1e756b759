"""Build, metric and scoring jobs that die: why comes to people, and ends what is in vain."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import (
    DIR,
    KEEP,
    NODES,
    NOTHING,
    ROUND,
    RUN,
    SPANS,
    TRIAL,
    facts,
    make_run,
    submitted,
)
from tests.decisions import tasks as alive
from tests.incidents import incident, judge
from tests.plans import changed
from tests.reviewer import FakeCluster
from tests.run_dirs import unplanned

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, Job, State, TaskStatus
from coordinate_eval.coordinator.incidents.incident import (
    Incident,
    read_incidents,
    write_incident,
)
from coordinate_eval.coordinator.incidents.observe import dead_pullers
from coordinate_eval.coordinator.incidents.shown import diagnose_run, report_failures
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.pullers import LEDGERS_OF, Pullers, pullers_name
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress, read_run, write_run
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decide_jobs import (
    MAX_IDLE_ARRAYS,
    all_die,
    last_cause,
)
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.diagnosis.rules import shipped

LOGS = {
    "Import Error": "ModuleNotFoundError: No module named 'lm_eval'\n",
    "Permission Error": "PermissionError: [Errno 13] Permission denied: '/cache/requests'\n",
    "OS Error": "OSError: [Errno 28] No space left on device: '/cache/requests/x'\n",
}
"""A log of each reason. A file system without inodes says the same as a full one."""

KINDS = [Pullers.BUILD, Pullers.METRIC, Pullers.SCORE]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.logs.mkdir(parents=True)
    run = make_run(settings={"cache_dir": str(tmp_path / "cache")}, asks=["b"])
    write_run(made, run)
    return made


def task(name: str, index: int = 0, node: str = "n1", end: End = End.FAILED) -> TaskStatus:
    return TaskStatus(
        name=name, job_id="7", index=index, node=node, state=State.ENDED, end=end
    )  # fmt: skip


def seen(run_dir: RunDir, *tasks: TaskStatus) -> list[Incident]:
    """What is seen of these tasks that is not known yet."""
    known = {each.job for each in read_incidents(run_dir)}
    return list(dead_pullers(run_dir, read_run(run_dir), tasks, 0.0, known))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", sorted(LOGS))
def test_a_job_of_each_kind_that_dies_is_reported_with_cause_and_cure(
    run_dir: RunDir, kind: Pullers, reason: str
) -> None:
    name = pullers_name(RUN, kind, 0)
    _files.write(run_dir.logs / f"{name}.7_3.log", LOGS[reason])
    (found,) = judge(run_dir, [task(name, 3)])
    assert (found.job, found.kind, found.node) == (f"{kind}0_3", kind, "n1")
    assert found.reason == reason
    (line,) = report_failures(run_dir)
    assert line.startswith(f"{kind} job {kind}0_3: {LOGS[reason].strip()}; log: {run_dir.logs}/")
    assert f"cause: {found.words}" in line
    (failed,) = diagnose_run(run_dir, shipped())
    assert failed.cause.reason == reason
    assert not seen(run_dir, task(name, 3)), "it is known"


def test_a_keeper_that_dies_without_a_word_has_the_cause_that_its_log_names(
    run_dir: RunDir,
) -> None:
    _files.write_record(run_dir.round(0), ROUND)
    first, second = (task(name, node=node) for name, node in zip(KEEP, NODES, strict=True))
    log = run_dir.logs / f"{KEEP[0]}.7.log"
    log.write_text("coordinate-eval: container: image x.sif has no vllm (python3): use another\n")
    (died,) = judge(run_dir, [first, changed(second, end=End.CANCELLED)])
    assert (died.kind, died.node, died.log) == ("keeper", NODES[0], str(log))
    assert died.reason == "Import Error"
    assert died.stops
    assert "[container] image" in died.words
    # What a keeper says itself counts, and is written once.
    ready = {"state": "ready", "done_bytes": 0, "total_bytes": 0, "started": 0, "updated": 0}
    _files.write_record(run_dir.stage(0, NODES[1]), StageProgress.model_validate(ready))
    assert judge(run_dir, [first, second]) == [died]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (Pullers.BUILD, "`[harness] memory_gib` is "),
        (Pullers.SCORE, "`[harness] memory_gib` is "),
    ],
)
def test_what_is_killed_for_memory_names_the_setting(
    run_dir: RunDir, kind: Pullers, setting: str
) -> None:
    """Also without a log: the kernel gives no process time for words."""
    (found,) = judge(run_dir, [task(pullers_name(RUN, kind, 0), end=End.OUT_OF_MEMORY)])
    assert (found.reason, found.log) == ("Out of Memory", "")
    assert setting in found.words
    (line,) = report_failures(run_dir)
    assert setting in line


def test_the_last_to_die_comes_last_whatever_the_names(run_dir: RunDir) -> None:
    names = ["metric0_2", "metric0_10", "metric0_1"]
    for when, name in enumerate(names):
        write_incident(run_dir, incident(name))
        os.utime(run_dir.incident(name), (1000 + when, 1000 + when))
    assert [each.job for each in read_incidents(run_dir)] == names


def test_only_deaths_count(run_dir: RunDir) -> None:
    name = pullers_name(RUN, Pullers.SCORE, 0)
    ends = [End.COMPLETED, End.PREEMPTED, End.CANCELLED, End.NODE_FAILED, End.TIME_LIMIT]
    others = [*(task(name, end=end) for end in (*ends, End.UNKNOWN)), task(KEEP[0]), task(TRIAL[0])]
    running = [task(name).model_copy(update={"state": State.RUNNING})]
    assert seen(run_dir, *others, *running) == []


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_a_log_count_until_such_jobs_have_worked(run_dir: RunDir, kind: Pullers) -> None:
    name = pullers_name(RUN, kind, 0)
    _files.write(run_dir.logs / f"{name}.7_0.log", LOGS["Import Error"])
    (before,) = seen(run_dir, task(name))
    assert before.before_work
    ledger = Ledger(run_dir, LEDGERS_OF[kind][-1])
    span = SPANS[2] if kind is Pullers.METRIC else whole("b")
    assert ledger.claim(span, "x", "7_0.0") is not None
    (during,) = seen(run_dir, task(name))
    assert during.before_work == (kind is Pullers.BUILD), "a builder meets no answers"
    if kind is Pullers.BUILD:
        _files.write(run_dir.requests_index("b"), "{}")
        (after,) = seen(run_dir, task(name))
        assert not after.before_work


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_whose_jobs_died_at_first_and_worked_since(
    run_dir: RunDir, kind: Pullers
) -> None:
    name = pullers_name(RUN, kind, 0)
    for index in range(2):
        _files.write(run_dir.logs / f"{name}.7_{index}.log", LOGS["Import Error"])
    both = [task(name, 0), task(name, 1, "n2")]
    assert all(cause.before_work for cause in judge(run_dir, both))
    run = read_run(run_dir)

    def known() -> d.Facts:
        return gather_facts(run_dir, run, both, 0.0, Counter())

    assert all_die(run, known(), kind)
    span = SPANS[2] if kind is Pullers.METRIC else whole("b")
    assert Ledger(run_dir, LEDGERS_OF[kind][-1]).claim(span, "x", "7_2.0") is not None
    if kind is Pullers.BUILD:
        assert all_die(run, known(), kind), "nothing is built yet"
        _files.write(run_dir.requests_index("b"), "{}")
    assert all_die(run, known(), kind) == ""
    assert "Import Error" in last_cause(known(), kind), "an end for another reason still says it"


def building(*causes: Incident, **changes: Any) -> d.Facts:
    """A run without a plan, of which two datasets wait for a builder."""
    waiting = {**NOTHING, "requests": [whole("a"), whole("b")]}
    return facts(
        rounds=[], unpublished=[], claimable=waiting, unbuilt=2, now=1e6,
        submitted=submitted(pullers_name(RUN, Pullers.BUILD, 0)),
        incidents=causes, **changes,
    )  # fmt: skip


UNPLANNED = make_run(shards=[])
BUILD = Pullers.BUILD


def ends(run: Run, found: d.Facts) -> str:
    return next((a.why for a in decide(run, DIR, found) if isinstance(a, d.Finish)), "")


def submits(run: Run, found: d.Facts, kind: Pullers) -> bool:
    return any(isinstance(a, d.Submit) and str(kind) in a.job.name for a in decide(run, DIR, found))


@pytest.mark.parametrize(
    "causes",
    [
        [incident("build0_0"), incident("build0_1", "n2")],
        [incident("build0_0"), incident("build1_0")],
        [
            incident(f"build{n}_0", reason="Out of Memory", category="slurm",
                 then="load")
            for n in range(2)
        ],
    ],
    ids=["two nodes", "two arrays", "memory"],
)  # fmt: skip
def test_what_every_builder_meets_ends_the_run_at_once(causes: list[Incident]) -> None:
    found = building(*causes)
    assert ends(UNPLANNED, found) == f"every build job dies of the same cause: {causes[-1].words}"
    assert not submits(UNPLANNED, found, BUILD)
    running = [TaskStatus(name=pullers_name(RUN, BUILD, 0), job_id="7", state=State.RUNNING)]
    assert not ends(UNPLANNED, replace(found, tasks=running)), "one runs that may do better"


@pytest.mark.parametrize(
    "causes",
    [
        [incident("build0_0"), incident("build0_1")],
        [incident("build0_0"), incident("build1_0", reason="Permission Error")],
        [incident("build0_0"), incident("build1_0", before_work=False)],
        [incident("build0_0"), incident("build1_0", then="wait")],
    ],
    ids=["one node", "two reasons", "after others built", "it may pass"],
)
def test_what_another_builder_may_not_meet_is_tried_again(causes: list[Incident]) -> None:
    found = building(*causes)
    assert ends(UNPLANNED, found) == ""
    assert submits(UNPLANNED, found, BUILD)
    # The words of the last one come to the end that follows.
    given_up = replace(found, idle_arrays=Counter({BUILD: MAX_IDLE_ARRAYS}))
    assert ends(UNPLANNED, given_up).endswith(f"; the last one died of {causes[-1].words}")


def test_nothing_is_submitted_before_the_logs_of_the_dead_are_read() -> None:
    name = pullers_name(RUN, BUILD, 0)
    found = building()
    waiting = list(dead_pullers(RunDir(Path("/none")), RUN, [task(name)], 0.0, set()))
    actions = decide(UNPLANNED, DIR, replace(found, observed=waiting))
    assert actions == [d.FindCauses(tuple(waiting))]


@pytest.mark.parametrize("kind", [Pullers.METRIC, Pullers.SCORE])
def test_where_every_scoring_or_metric_job_dies_trials_go_on_and_the_end_says_why(
    kind: Pullers,
) -> None:
    run = make_run(asks=["b"])
    both = [incident(f"{kind}0_0"), incident(f"{kind}0_1", "n2")]
    ledger = LEDGERS_OF[kind][-1]
    waiting = {**NOTHING, ledger: [SPANS[2] if ledger == "answers" else whole("b")]}
    known = submitted(*KEEP, *TRIAL, pullers_name(run, kind, 0), when=0)
    found = facts(submitted=known, incidents=both, claimable=waiting, now=1e5)
    going_on = replace(found, tasks=alive(TRIAL[0], State.RUNNING))
    assert not ends(run, going_on)
    assert not submits(run, going_on, kind)
    assert submits(run, replace(going_on, incidents=both[:1]), kind)
    answered = replace(found, unpublished=[], unscored=1)
    assert ends(run, answered) == f"every {kind} job dies of the same cause: {both[-1].words}"


class Dying(FakeCluster):
    """A scheduler whose jobs all die at once, on one node, with these words."""

    def __init__(self, run_dir: RunDir, log: str, end: End) -> None:
        super().__init__()
        self._dir, self._log, self._end = run_dir, log, end

    def submit(self, job: Job) -> str:
        _files.write(Path(f"{job.log}.{super().submit(job)}.log"), self._log)
        return str(len(self.submitted))

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=job.name, job_id=str(number), state=State.ENDED, end=self._end,
                       node="n1")
            for number, job in enumerate(self.submitted, 1)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("log", "end", "words"),
    [
        (LOGS["Import Error"], End.FAILED, "Import Error"),
        (LOGS["Permission Error"], End.FAILED, "Permission Error"),
        ("", End.OUT_OF_MEMORY, "`[harness] memory_gib` is "),
    ],
    ids=["module", "right", "memory"],
)
def test_a_run_whose_builders_all_die_ends_with_the_cure_before_a_gpu_is_asked_for(
    tmp_path: Path, log: str, end: End, words: str
) -> None:
    run_dir, _ = unplanned(tmp_path, harness={"jobs": 1})
    run_dir.logs.mkdir(parents=True)
    cluster, told = Dying(run_dir, log, end), list[str]()
    results = Supervisor(run_dir, cluster, tell=told.append).run()
    assert results is not None
    assert len(cluster.submitted) == 2, "the second one says the same"
    assert not any(job.gpus for job in cluster.submitted)
    assert results["reason"].startswith("every build job dies of the same cause: ")
    assert words in results["reason"]
    assert any(words in line for line in results["failures"])
    assert any("build job build0_0 died of " in event for event in told)
