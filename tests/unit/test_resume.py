"""Asking again for a run that stopped: why it stopped is said, and cron does not try for ever."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reviewer import Reviewer
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, JobLimits, State, TaskStatus, Window
from coordinate_eval.coordinator.cli.launch import resume
from coordinate_eval.coordinator.cli.launch.resume import cancel_run
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.run import jobs, lease
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Submitted, read_run
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.coordinator.run.starting.resumes import MOST_TRIES
from coordinate_eval.coordinator.run.supervision import take_over
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.errors import ClusterSilent, CoordinateError, UserError


def ask(reviewer: Reviewer) -> None:
    assert start_run(reviewer.inputs(tiny_model())) == 0


def test_a_silent_scheduler_is_given_no_run(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "SILENCE_SECONDS", 0)
    reviewer.cluster.silent = True
    with pytest.raises(ClusterSilent) as caught:
        ask(reviewer)
    assert caught.value.exit_status == 3
    assert list((reviewer.folder / "runs").glob("*")) == []


def fail(reviewer: Reviewer) -> RunDir:
    """The run ends without results."""
    (root,) = (reviewer.folder / "runs").iterdir()
    results = {"complete": False, "failures": ["8 trials: no memory; log: /l"], "missing": {}}
    _files.write(RunDir(root).results, json.dumps(results))
    reviewer.cluster.submitted.clear()
    return RunDir(root)


def test_asking_again_says_why_it_failed_and_stops_after_some_tries(reviewer: Reviewer) -> None:
    ask(reviewer)
    for number in range(MOST_TRIES):
        fail(reviewer)
        ask(reviewer)
        said = reviewer.capsys.readouterr().err
        assert "stopped without all results" in said
        assert "8 trials: no memory; log: /l" in said
        assert (f"try {number + 1} of {MOST_TRIES}" in said) == (number > 0)
        assert len(reviewer.cluster.submitted) == 1
    run_dir = fail(reviewer)
    with pytest.raises(CoordinateError, match="no memory") as caught:
        ask(reviewer)
    assert caught.value.exit_status == 1
    assert f"coordinate-eval resume {run_dir.root.name}" in str(caught.value)
    assert not reviewer.cluster.submitted
    assert resume.resume_run(run_dir, Settings(), wait=False, as_json=False) == 0
    assert len(reviewer.cluster.submitted) == 1
    fail(reviewer)
    ask(reviewer)


def test_a_supervisor_that_is_resumed_ends_before_a_maintenance_announced_since(
    reviewer: Reviewer,
) -> None:
    ask(reviewer)
    run_dir = fail(reviewer)
    window = Window(start=time.time() + 6030, why="reservation maint (tonight)")
    reviewer.cluster.limited = JobLimits(gpu_window=window, cpu_window=window)
    assert resume.resume_run(run_dir, Settings(), wait=False, as_json=False) == 0
    (job,) = reviewer.cluster.submitted
    assert 90 <= job.minutes <= 94
    assert "reservation maint (tonight) takes all nodes" in reviewer.capsys.readouterr().err


def test_several_who_ask_at_once_make_one_try(reviewer: Reviewer) -> None:
    """Each looks before the supervisor of another is to be seen."""
    ask(reviewer)
    reviewer.cluster.tasks = []
    for _ in range(MOST_TRIES):
        run_dir = fail(reviewer)
        for _ in range(MOST_TRIES + 1):
            ask(reviewer)
        take_over(run_dir)  # it fails at once
    assert resumes.tries_without_progress(run_dir) == MOST_TRIES
    with pytest.raises(CoordinateError, match="without any progress"):
        ask(reviewer)


def test_a_supervisor_that_never_starts_is_not_asked_for_without_end(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(reviewer)
    run_dir = fail(reviewer)
    reviewer.cluster.tasks = []
    monkeypatch.setattr(resumes, "STARTING_SECONDS", 0.0)
    for _ in range(MOST_TRIES):
        ask(reviewer)
    with pytest.raises(CoordinateError):
        ask(reviewer)
    assert not run_dir.supervisors_folder.exists()


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"slurm": {"partition": "other"}}, 'slurm.partition = ""'),
        ({"harness": {"memory_gib": 99.0}}, "harness.memory_gib = 8.0"),
        ({"limits": {"gpus": 8}}, "limits.gpus = null"),
        ({"local": {"gpus": 2}}, "local.gpus = null"),
        ({"after_run": ["log-scores"]}, "after_run = []"),
    ],
)
def test_asking_again_with_other_settings_says_which_are_kept(
    reviewer: Reviewer, changed: dict[str, Any], kept: str
) -> None:
    ask(reviewer)
    root = fail(reviewer).root
    ask(reviewer)
    assert "keeps the settings" not in reviewer.capsys.readouterr().err
    fail(reviewer)
    inputs = reviewer.inputs(tiny_model())
    values = inputs.settings.model_dump(exclude_unset=True)
    settings = Settings.model_validate(values | changed)
    assert start_run(replace(inputs, settings=settings)) == 0
    said = reviewer.capsys.readouterr().err
    assert kept in said
    assert f"delete {root}" in said


def test_a_run_is_marked_as_cancelled_though_the_scheduler_is_silent(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(reviewer)
    run_dir = fail(reviewer)

    monkeypatch.setattr(clusters, "SILENCE_SECONDS", 0)
    reviewer.cluster.silent = True
    with pytest.raises(ClusterSilent, match="is marked as cancelled"):
        cancel_run(run_dir)
    assert run_dir.cancelled.exists()


def test_cancelling_ends_the_lease_of_a_run_whose_supervisor_on_this_machine_is_gone(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(reviewer)
    run_dir = fail(reviewer)
    run_dir.results.unlink()
    run = read_run(run_dir)
    assert lease.take(run_dir, run)
    take_over(run_dir)
    reviewer.cluster.local = True
    monkeypatch.setattr(state, "_is_ours", lambda pid: pid == os.getpid())
    cancel_run(run_dir)
    assert run.lease.is_dir()
    assert "as soon as its supervisor sees that" in reviewer.capsys.readouterr().err
    monkeypatch.setattr(state, "_is_ours", lambda pid: False)
    cancel_run(run_dir)
    assert not run.lease.exists()
    assert "no job was left" in reviewer.capsys.readouterr().err


def test_progress_between_tries_starts_the_count_again(reviewer: Reviewer) -> None:
    reviewer.plan()
    ask(reviewer)
    reviewer.supervise(fail(reviewer))
    shards = read_run(fail(reviewer)).shards
    assert len(shards) > MOST_TRIES
    for shard in shards:
        _files.write(fail(reviewer).published("outputs", shard.span), "")
        ask(reviewer)


def test_asking_again_for_a_run_at_work_changes_nothing(reviewer: Reviewer) -> None:
    ask(reviewer)
    ask(reviewer)
    (root,) = (reviewer.folder / "runs").iterdir()
    assert not RunDir(root).resumed.exists()
    assert "is supervised by job 1" in reviewer.capsys.readouterr().err


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_supervisor_that_has_ended_the_run_is_no_reason_not_to_resume(
    reviewer: Reviewer, cancelled: bool
) -> None:
    ask(reviewer)
    (root,) = (reviewer.folder / "runs").iterdir()
    take_over(RunDir(root))
    if cancelled:
        _files.write(RunDir(root).cancelled, "")
    else:
        results = {"complete": False, "failures": [], "missing": {"a": "no data"}}
        _files.write(RunDir(root).results, json.dumps(results))
    for _ in range(3):  # the next one waits in the queue
        assert resume.resume_run(RunDir(root), Settings(), wait=False, as_json=False) == 0
        assert len(reviewer.cluster.submitted) == 2
    assert "is supervised by job" in reviewer.capsys.readouterr().err


@pytest.mark.parametrize("local", [False, True])
def test_asking_again_leaves_a_run_to_the_terminal_that_supervises_it(
    reviewer: Reviewer, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(reviewer)
    run_dir = fail(reviewer)
    run_dir.results.unlink()
    reviewer.cluster.local = local
    monkeypatch.setattr(state, "_is_ours", lambda pid: pid == os.getpid())
    take_over(run_dir)
    reviewer.capsys.readouterr()
    for _ in range(MOST_TRIES + 1):
        ask(reviewer)
    said = reviewer.capsys.readouterr().err
    assert "is supervised by another process on this machine" in said
    assert "stopped" not in said
    assert not reviewer.cluster.submitted
    assert not run_dir.resumed.exists()


def test_an_interrupted_wait_says_which_jobs_hold_gpus(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Supervisor) -> None:
        run, run_dir = self._run, self._dir
        job = Job(name=jobs.trials_name(run, 0, "n1"), argv=("x",), minutes=1, log="/l", gpus=1)
        submitted = Submitted(job=job, job_id="42", time=0)
        _files.write_record(run_dir.job(job.name), submitted)
        reviewer.cluster.tasks = [
            TaskStatus(name=job.name, job_id="42", index=i, state=State.RUNNING) for i in range(4)
        ]
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_run(reviewer.inputs(tiny_model()), wait=True)
    said = reviewer.capsys.readouterr().err
    assert "jobs 42 go on and hold 4 GPUs" in said
    assert "coordinate-eval resume tiny" in said
    assert "coordinate-eval cancel tiny" in said


@pytest.mark.parametrize("name", ["cache_dir", "runs_dir"])
@pytest.mark.parametrize("folder", ["/sys/nope", "/dev/null/x"])
def test_a_folder_that_cannot_be_written_is_said_first(
    reviewer: Reviewer, name: str, folder: str
) -> None:
    reviewer.settings = reviewer.settings.model_copy(update={name: folder})
    with pytest.raises(UserError, match=f"{name}.*{folder}") as caught:
        ask(reviewer)
    assert len(str(caught.value).splitlines()) == 1
    assert not (reviewer.folder / "runs").exists()


def test_a_run_that_teaches_nothing_says_so_and_goes_on(reviewer: Reviewer) -> None:
    reviewer.settings = reviewer.settings.model_copy(update={"priors_dir": "/sys/nope"})
    ask(reviewer)
    assert "nothing will be learned from this run: setting priors_dir: /sys/nope cannot be" in (
        reviewer.capsys.readouterr().err
    )


def test_missing_folders_are_not_made_by_checking_them(reviewer: Reviewer) -> None:
    place = reviewer.folder / "a" / "b"
    reviewer.settings = reviewer.settings.model_copy(update={"priors_dir": str(place)})
    ask(reviewer)
    assert not place.parent.exists()
    assert not [path for path in Path(reviewer.folder).iterdir() if path.name.startswith(".")]
    assert clusters.by_name("slurm", reviewer.settings) is reviewer.cluster
