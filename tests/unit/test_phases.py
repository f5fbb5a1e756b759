"""The phase of a run, from its queue to its end, and how many trials are at work."""

import os
import time

from tests.decisions import NODES, ROUND, RUN, SPANS
from tests.shown_runs import (
    REQUESTS,
    SUPERVISOR,
    finish,
    pending,
    publish,
    running,
    score,
    seen,
    trial,
)

from coordinate_eval import _files
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode, StageProgress
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.coordinator.run.supervision import Epoch


def test_every_phase_in_order(run_dir: RunDir) -> None:
    queued = pending(SUPERVISOR.name, "Priority")
    assert seen(run_dir, queued).phase is Phase.QUEUED
    assert "Priority" in seen(run_dir, queued).detail
    assert seen(run_dir, SUPERVISOR).phase is Phase.WAITING
    assert seen(run_dir, SUPERVISOR, pending("another")).phase is Phase.WAITING

    _files.write_record(run_dir.round(0), ROUND)
    waits = pending(jobs.keeper_name(RUN, 0, "n1"))
    assert seen(run_dir, SUPERVISOR, waits).phase is Phase.WAITING
    assert seen(run_dir, SUPERVISOR, waits).detail == "job 8 is pending: Resources"
    limit = pending(jobs.trials_name(RUN, 0, "n1"), "AssocMaxJobsLimit")
    said = seen(run_dir, SUPERVISOR, limit.model_copy(update={"means": "a limit"})).detail
    assert said.endswith("is pending: AssocMaxJobsLimit, a limit")

    stage = StageProgress(state="copying", done_bytes=3, total_bytes=10, started=0, updated=1)
    _files.write_record(run_dir.stage(0, "n1"), stage)
    assert seen(run_dir, SUPERVISOR).phase is Phase.STAGING
    assert "30%" in seen(run_dir, SUPERVISOR).detail
    ready = stage.model_copy(update={"state": "ready"})
    _files.write_record(run_dir.stage(0, "n1"), ready)

    at_work = [running(jobs.trials_name(RUN, 0, "n1"), index) for index in range(2)]
    for node in ("n1", "n2"):
        for index in range(2):
            trial(run_dir, node, index, "staging")
    assert "ended" not in seen(run_dir, SUPERVISOR, *at_work).detail
    for path in run_dir.trials_folder.iterdir():
        path.unlink()

    trial(run_dir, "n1", 0, "starting")
    assert seen(run_dir, SUPERVISOR, *at_work).phase is Phase.STARTING
    trial(run_dir, "n1", 1, "running", responses=5)
    found = seen(run_dir, SUPERVISOR, *at_work)
    assert found.phase is Phase.RUNNING
    assert found.trials == {"starting": 1, "running": 1, "waiting": 2}
    assert (found.responses, found.requests, found.nodes) == (5, REQUESTS, len(NODES))

    publish(run_dir, len(SPANS))
    assert seen(run_dir, SUPERVISOR).phase is Phase.SCORING
    assert seen(run_dir, SUPERVISOR).responses == REQUESTS

    score(run_dir, "a", "b")
    finish(run_dir)
    assert seen(run_dir).phase is Phase.COMPLETE


def test_trials_that_wait_in_the_queue_are_on_no_node(run_dir: RunDir) -> None:
    node = RoundNode(name=ANY_NODE, gpu_type="h200", trials=2)
    _files.write_record(run_dir.round(0), ROUND.model_copy(update={"nodes": [node]}))
    name = jobs.trials_name(RUN, 0, ANY_NODE)
    found = seen(run_dir, SUPERVISOR, pending(name))
    assert (found.trials, found.nodes) == ({"waiting": 2}, 0)
    trial(run_dir, ANY_NODE, 0, "running")
    assert seen(run_dir, SUPERVISOR, running(name)).nodes == 1


def test_a_lost_trial_does_not_run(run_dir: RunDir) -> None:
    _files.write_record(run_dir.round(0), ROUND)
    trial(run_dir, "n1", 0, "running")
    assert seen(run_dir, SUPERVISOR).trials == {"waiting": 3}


def test_a_replacement_counts_beside_what_lives_on(run_dir: RunDir) -> None:
    _files.write_record(run_dir.round(0), ROUND)
    for node in NODES:
        for index in range(2):
            trial(run_dir, node, index, "running")
    _files.write(run_dir.released(0, "n2"), "")
    substitute = ROUND.nodes[0].model_copy(update={"name": "n3"})
    _files.write_record(run_dir.round(1), Round(number=1, created=1, nodes=[substitute], minutes=9))
    lives_on = running(jobs.trials_name(RUN, 0, "n1"))
    found = seen(run_dir, SUPERVISOR, lives_on)
    assert found.phase is Phase.RUNNING
    assert found.trials == {"running": 1, "waiting": 2}
    assert found.nodes == 3
    for name in ("n1", "n2", "n3"):
        for number in range(2):
            _files.write(run_dir.released(number, name), "")
    assert seen(run_dir, SUPERVISOR).nodes == 1


def test_who_supervises(run_dir: RunDir) -> None:
    assert seen(run_dir).phase is Phase.UNSUPERVISED
    assert seen(run_dir, silent=True).phase is Phase.UNKNOWN
    epoch = Epoch(epoch=1, host=os.uname().nodename, pid=2**22 + 1, time=1, token="t")
    _files.write_record(run_dir.supervisor(1), epoch)
    assert seen(run_dir).phase is Phase.UNSUPERVISED
    elsewhere = epoch.model_copy(update={"host": "another machine's name"})
    _files.write_record(run_dir.supervisor(1), elsewhere)
    assert not seen(run_dir).phase.ended
    _files.write_record(run_dir.supervisor(1), elsewhere.model_copy(update={"task": "7.0"}))
    assert seen(run_dir).phase is Phase.UNSUPERVISED


def test_an_incomplete_run_that_is_resumed_has_not_ended(run_dir: RunDir) -> None:
    score(run_dir, "a")
    finish(run_dir, "3 rounds in a row answered nothing")
    assert seen(run_dir).phase is Phase.INCOMPLETE
    later = time.time() + 10
    resumes.note(run_dir, by_hand=True)
    os.utime(run_dir.resumed, (later, later))
    assert not seen(run_dir, SUPERVISOR).phase.ended
    assert seen(run_dir).phase is Phase.UNSUPERVISED
