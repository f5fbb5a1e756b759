"""Trials that give no sign of life are ended, and how trials ended is written down."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import SetClock
from tests.decisions import (
    DIR,
    KEEP,
    NODES,
    NOTHING,
    ROUND,
    RUN,
    SPANS,
    TRIAL,
    claimed,
    facts,
    make_run,
    submitted,
)
from tests.incidents import ended as ended_so
from tests.runs import until

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, State, TaskStatus
from coordinate_eval.coordinator.incidents.hangs import HANG_FACTOR, answer_seconds, silence_seconds
from coordinate_eval.coordinator.incidents.incident import read_incidents
from coordinate_eval.coordinator.incidents.observe import silent_ends
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    StageProgress,
    Submitted,
    TrialProgress,
    write_planned,
    write_run,
)
from coordinate_eval.coordinator.supervisor import decide as d
from coordinate_eval.coordinator.supervisor.decide_jobs import END_SECONDS
from coordinate_eval.coordinator.supervisor.polls import Silence
from coordinate_eval.coordinator.supervisor.values import (
    Cancel,
    EndHung,
    Facts,
    Revoke,
)
from coordinate_eval.coordinator.workers.on_node import whole_node

SLEEP = "import time; time.sleep(600)"
LEAST = RUN.settings.trial.hang_minutes * 60
FACTOR = HANG_FACTOR


def progress(state: str = "running", **fields: Any) -> TrialProgress:
    known = {"trial": "n1-1", "task": "7_1.0", "node": "n1", "started": 0, "updated": 0}
    return TrialProgress.model_validate(
        known | {"state": state, "ready": 1.0} | fields, extra="forbid"
    )


def running(**changes: Any) -> Facts:
    """Facts of two trials that run on n1, of which the second holds a shard."""
    tasks = [TaskStatus(name=TRIAL[0], job_id="7", index=i, state=State.RUNNING) for i in range(2)]
    base = facts(
        submitted=submitted(*KEEP, *TRIAL),
        tasks=tasks,
        open_claims=[("outputs", claimed(SPANS[0], "7_1.0", "n1-1"))],
        trials={"n1-1": progress(), "n1-0": progress(trial="n1-0", task="7_0.0")},
        silent={"n1-0": 1.0, "n1-1": 1.0},
    )
    return replace(base, **changes)


def ended(found: Facts, run: Any = RUN) -> list[EndHung]:
    return [a for a in d.decide(run, DIR, found) if isinstance(a, EndHung)]


def test_only_a_silent_trial_is_ended_and_its_shards_go_to_others() -> None:
    assert ended(running()) == []
    silent = running(silent={"n1-0": 1.0, "n1-1": LEAST})
    (end,) = ended(silent)
    assert (end.incident.job, end.incident.how, end.job_ids) == ("n1-1", "hung", ("7_1",))
    (revoked,) = [a for a in d.decide(RUN, DIR, silent) if isinstance(a, Revoke)]
    assert revoked.claim.claim.owner == "n1-1"


def test_one_that_was_helped_has_the_time_of_all_that_it_may_work_at() -> None:
    """Others have claimed one of its shards since, and it goes on at both."""
    due = {"a": LEAST, "b": 3 * LEAST, "c": 9 * LEAST}
    other = next(span for span in SPANS if span.dataset == "b")
    (_, own), *_ = running().open_claims
    helped = running(
        claims_with_second_attempt=[own._replace(span=other)], silent={"n1-1": LEAST}, due=due
    )
    assert own.span.dataset == "a"
    assert ended(helped) == []
    assert len(ended(replace(helped, silent={"n1-1": 3 * LEAST}))) == 1
    assert ended(replace(helped, open_claims=[])) == []
    assert ended(replace(helped, silent={"n1-1": 3 * LEAST}, unpublished=[])) == []


def test_one_whose_helper_published_all_that_it_held_has_the_time_of_any_dataset() -> None:
    """Nothing says any more what it answers, until that answer is there."""
    due = {"a": 9 * LEAST, "b": LEAST}
    helped = running(open_claims=[], silent={"n1-1": LEAST}, due=due)
    assert ended(helped) == []
    theirs = running().open_claims[0][1]
    theirs = theirs._replace(claim=theirs.claim.model_copy(update={"owner": "n1-0"}))
    assert ended(replace(helped, claims_with_second_attempt=[theirs])) == [], (
        "another one's say nothing of it"
    )
    assert len(ended(replace(helped, silent={"n1-1": 9 * LEAST}))) == 1


def cancelled(found: Facts, run: Any = RUN) -> list[str]:
    actions = [a for a in d.decide(run, DIR, found) if isinstance(a, Cancel)]
    why = "nothing is left for its trials to do, and it goes on"
    return [job for action in actions if action.why == why for job in action.job_ids]


def test_trials_that_go_on_silently_when_every_shard_is_published_are_cancelled() -> None:
    silent = {"n1-0": END_SECONDS, "n1-1": END_SECONDS}
    over = running(unpublished=[], open_claims=[], claimable=NOTHING, silent=silent)
    assert cancelled(over) == ["7_0", "7_1"]
    assert cancelled(replace(over, silent={**silent, "n1-0": END_SECONDS - 1})) == ["7_1"]
    said = {**over.trials, "n1-1": progress("ended")}
    assert cancelled(replace(over, trials=said)) == ["7_0", "7_1"], (
        "processes may hang at their end"
    )
    first, second = over.tasks
    ending = [first.model_copy(update={"completing": True}), second]
    assert cancelled(replace(over, tasks=ending)) == ["7_1"]
    whole = make_run(exclusive=True)
    assert cancelled(replace(over, tasks=[first]), whole) == ["7"]


def lingering(run: Any = RUN, tasks: list[TaskStatus] | None = None, **silent: float) -> list[str]:
    """Return what is cancelled of two trials that have ended, while shards are left."""
    over = {name: progress("ended", trial=name) for name in ("n1-0", "n1-1")}
    found = running(trials=over, silent={name.replace("_", "-"): s for name, s in silent.items()})
    return cancelled(replace(found, tasks=tasks) if tasks else found, run)


def test_tasks_that_go_on_long_after_their_trials_have_ended_are_cancelled() -> None:
    assert lingering(n1_0=END_SECONDS - 1, n1_1=0) == []
    assert lingering(n1_0=END_SECONDS, n1_1=END_SECONDS - 1) == ["7_0"]
    assert lingering(n1_0=END_SECONDS, n1_1=END_SECONDS) == ["7_0", "7_1"]
    completing = [each.model_copy(update={"completing": True}) for each in running().tasks]
    assert lingering(tasks=completing, n1_0=END_SECONDS, n1_1=END_SECONDS) == []


def test_a_job_of_a_whole_node_is_cancelled_when_all_of_its_trials_have_ended() -> None:
    whole = make_run(exclusive=True)
    task = [TaskStatus(name=TRIAL[0], job_id="7", state=State.RUNNING)]
    assert lingering(whole, task, n1_0=END_SECONDS, n1_1=0) == []
    assert lingering(whole, task, n1_0=END_SECONDS, n1_1=END_SECONDS) == ["7"]


def test_a_trial_that_has_ended_or_waits_is_not_silent() -> None:
    silent = {"n1-0": 10 * LEAST, "n1-1": 10 * LEAST}
    over = {"n1-0": progress("ended", trial="n1-0"), "n1-1": progress("failed")}
    assert ended(running(silent=silent, trials=over)) == []
    waiting = [
        TaskStatus(name=TRIAL[0], job_id="7", index=i, state=State.PENDING) for i in range(2)
    ]
    assert ended(running(silent=silent, tasks=waiting)) == []


def test_a_job_of_a_whole_node_is_left_to_end_its_trial() -> None:
    run = make_run(exclusive=True)
    task = TaskStatus(name=TRIAL[0], job_id="7", state=State.RUNNING)
    silent = running(tasks=[task], silent={"n1-0": 1.0, "n1-1": 9 * LEAST})
    (end,) = ended(silent, run)
    assert (end.incident.job, end.job_ids) == ("n1-1", ())


def test_so_is_one_that_was_submitted_because_no_keeper_was_accepted() -> None:
    job = jobs.node_job(RUN, DIR, ROUND, ROUND.nodes[0])
    whole = {TRIAL[0]: Submitted(job=job, job_id="7", time=90)}
    task = TaskStatus(name=TRIAL[0], job_id="7", state=State.RUNNING)
    silent = running(submitted=whole, tasks=[task], silent={"n1-0": 1.0, "n1-1": 9 * LEAST})
    (end,) = ended(silent)
    assert (end.incident.job, end.job_ids) == ("n1-1", ())


def test_one_that_is_suspended_for_long_is_ended_as_a_whole() -> None:
    run = make_run(exclusive=True)
    task = TaskStatus(name=TRIAL[0], job_id="7", state=State.RUNNING, suspended=True)
    silent = running(tasks=[task], silent={"n1-0": 1.0, "n1-1": 9 * LEAST})
    (end,) = ended(silent, run)
    assert (end.incident.how, end.job_ids) == (End.PREEMPTED, ("7",))


def test_a_trial_that_is_suspended_for_long_is_preempted() -> None:
    known = running()
    tasks = [task.model_copy(update={"suspended": True}) for task in known.tasks]
    silent = replace(known, tasks=tasks, silent={"n1-0": 1.0, "n1-1": LEAST})
    (end,) = ended(silent)
    assert end.incident.how is End.PREEMPTED
    (revoked,) = [a for a in d.decide(RUN, DIR, silent) if isinstance(a, Revoke)]
    assert revoked.end is End.PREEMPTED


def test_how_long_silence_may_last() -> None:
    def allowed(found: TrialProgress | None, *held: str, **due: float) -> float:
        return silence_seconds(RUN, found, held, due)

    assert allowed(progress()) == LEAST
    assert allowed(progress(), "a", a=5.0, b=1e6) == LEAST
    assert allowed(progress(), "a", a=1e6) == 1e6
    for starting in (None, progress("staging"), progress("starting"), progress(ready=None)):
        assert allowed(starting) == 2 * LEAST
    assert allowed(progress(ready=None), "a", a=1e6) == 1e6
    slow = make_run(engine_start_seconds=1000.0, copy_seconds=500.0)
    assert silence_seconds(slow, progress("starting"), [], {}) == 2 * FACTOR * 1500
    engine = {"name": "server", "args": {"base_url": "http://h/v1", "start_minutes": 90}}
    server = make_run(settings=Settings.model_validate({"engine": engine}))
    assert silence_seconds(server, progress("starting"), [], {}) == 90 * 60 + LEAST


def test_an_answer_is_due_after_the_longest_that_may_be() -> None:
    due = answer_seconds(RUN, {"a": 50.0, "b": 0.0}, {"b": 32_768})
    assert due == {"a": FACTOR * 50.0, "b": pytest.approx(3276.8)}
    assert answer_seconds(RUN, {}, {}) == {"a": FACTOR * 1.0, "b": FACTOR * 1.0}


def test_signs_of_life_are_changes_of_records_by_the_supervisors_own_clock(tmp_path: Path) -> None:
    clock = SetClock(100)
    silence = Silence(RunDir(tmp_path), clock)

    def seen(found: Facts, after: float) -> dict[str, float]:
        clock.sleep(after)
        return dict(silence.of(RUN, found).silent)

    first = running()
    assert seen(first, 0) == {"n1-0": 0.0, "n1-1": 0.0}
    assert seen(first, 10) == {"n1-0": 10.0, "n1-1": 10.0}
    answered = running(trials={**first.trials, "n1-1": progress(responses=1)})
    assert seen(answered, 10) == {"n1-0": 20.0, "n1-1": 0.0}
    silence.begins_again("n1-0")
    assert seen(answered, 10) == {"n1-0": 0.0, "n1-1": 10.0}
    copying = StageProgress.model_validate(
        {"state": "copying", "done_bytes": 1, "total_bytes": 9, "started": 0, "updated": 0}
    )
    staging = replace(answered, stages={(0, "n1"): copying})
    assert seen(staging, 10) == {"n1-0": 0.0, "n1-1": 0.0}


@pytest.mark.parametrize("end", [End.PREEMPTED, End.OUT_OF_MEMORY, End.UNKNOWN])
def test_how_a_trial_ended_is_seen_once(end: End) -> None:
    tasks = [TaskStatus(name=TRIAL[0], job_id="7", index=1, state=State.ENDED, end=end)]
    trials = {0: [progress(log="/log"), progress("ended", trial="n1-0", task="7_0.0")]}
    gone = [] if end is End.UNKNOWN else tasks
    (found,) = silent_ends(gone, trials, 9, set())
    assert (found.job, found.node, found.how, found.log) == ("n1-1", NODES[0], end, "/log")
    assert list(silent_ends(gone, trials, 9, {"n1-1"})) == []


def test_incidents_are_told_until_the_run_is_resumed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    _files.write_record(run_dir.run, RUN)
    ended_so(run_dir, "n1-0", "hung", message="silent", log="/log")
    ended_so(run_dir, "n1-0", End.CANCELLED, message="later")
    assert [each.message for each in read_incidents(run_dir)] == ["silent"]
    (line,) = report_failures(run_dir)
    assert line.startswith("trial n1-0: silent; log: /log")
    _files.write(run_dir.resumed, "")
    os.utime(run_dir.resumed, (time.time() + 1,) * 2)
    assert read_incidents(run_dir) == []


def test_a_trial_in_a_job_of_a_whole_node_is_killed_by_its_parent(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    trials = {
        name: subprocess.Popen([sys.executable, "-c", code], process_group=0)
        for name, code in (("n1-0", "raise SystemExit(3)"), ("n1-1", SLEEP))
    }
    write_run(run_dir, RUN)
    write_planned(run_dir, RUN)
    ended_so(run_dir, "n1-1", "hung")
    assert whole_node._wait(run_dir, "n1", trials) == [3, -9]
    assert [each.how for each in read_incidents(run_dir)] == ["hung"]


def test_storage_that_is_away_for_a_moment_ends_no_trial(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.root.touch()  # an error for each file in it, as of a server that is away
    trials = ended_and_lasting()
    waiting = threading.Thread(target=whole_node._wait, args=(run_dir, "n1", trials))
    waiting.start()
    until(lambda: trials["n1-0"].returncode is not None, "a look at a trial that was killed")
    run_dir.root.unlink()
    write_run(run_dir, RUN)
    write_planned(run_dir, RUN)
    until(run_dir.trial("n1-0").exists, "a note of that")
    assert trials["n1-1"].poll() is None
    trials["n1-1"].kill()
    waiting.join()


def ended_and_lasting() -> dict[str, subprocess.Popen[bytes]]:
    """Return a trial that a signal ends, and one that goes on, in groups of their own."""
    killed = "import os; os.kill(os.getpid(), 9)"
    return {
        name: subprocess.Popen([sys.executable, "-c", code], process_group=0)
        for name, code in (("n1-0", killed), ("n1-1", SLEEP))
    }


def test_what_the_engine_of_a_killed_trial_has_started_is_killed(tmp_path: Path) -> None:
    """It would keep the GPUs for as long as the other trials of the node go on."""
    write_run(RunDir(tmp_path), RUN)
    write_planned(RunDir(tmp_path), RUN)
    reader, writer = os.pipe()
    killed = (
        "import os, subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}], pass_fds=[{writer}]); "
        "os.kill(os.getpid(), 9)"
    )
    trials = {
        name: subprocess.Popen([sys.executable, "-c", code], process_group=0, pass_fds=held)
        for name, code, held in (("n1-0", killed, [writer]), ("n1-1", SLEEP, []))
    }
    os.close(writer)
    waiting = threading.Thread(target=whole_node._wait, args=(RunDir(tmp_path), "n1", trials))
    waiting.start()
    assert os.read(reader, 1) == b""  # the last process has ended that could write
    os.close(reader)
    trials["n1-1"].kill()
    waiting.join()


def test_one_that_a_signal_ends_gives_its_shards_to_others_at_once(tmp_path: Path) -> None:
    """The job goes on with its other trials, so the scheduler knows nothing of it."""
    run_dir = RunDir(tmp_path)
    write_run(run_dir, RUN)
    write_planned(run_dir, RUN)
    ledger = Ledger(run_dir, "outputs")
    assert ledger.claim(SPANS[0], "n1-0", "7.0") == 1
    assert ledger.claim(SPANS[1], "n1-1", "7.0") == 1
    trials = ended_and_lasting()
    waiting = threading.Thread(target=whole_node._wait, args=(run_dir, "n1", trials))
    waiting.start()
    until(lambda: SPANS[0] in ledger.claimable(SPANS), "a shard that is free again")
    assert SPANS[1] not in ledger.claimable(SPANS)
    trials["n1-1"].kill()
    waiting.join()
    told = _files.read_record(run_dir.trial("n1-0"), TrialProgress)
    assert (told.state, told.node) == ("failed", "n1")
    assert "signal 9" in told.message


def test_a_site_chooses_how_patient_it_is() -> None:
    quick = make_run(settings=Settings.model_validate({"trial": {"hang_minutes": 0.5}}))
    assert silence_seconds(quick, progress(), [], {}) == 30
