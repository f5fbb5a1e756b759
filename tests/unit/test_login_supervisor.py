"""A supervisor that cannot submit from its node leaves the run to login nodes, and loses none."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.reviewer import Reviewer
from tests.runs import until
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE, Job
from coordinate_eval.coordinator.cli.job_commands import call
from coordinate_eval.coordinator.cli.launch import resume
from coordinate_eval.coordinator.cli.launch.resume import supervise_from_here
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.doctor.examine import supervisor
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.run.supervision import latest_epoch, take_over
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.errors import NotFromHere, SettingsRefused
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings


class Login:
    """A login node: an sbatch, and an interpreter that notes what it was started with."""

    def __init__(self, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reviewer, self.folder = reviewer, reviewer.folder
        self.notes = self.folder / "notes"
        self.program("sbatch", "")
        notes = shlex.quote(str(self.notes))
        self.program("python", f'{{ echo "$@"; env; }} >{notes}.$$; mv {notes}.$$ {notes}')
        monkeypatch.setenv("PATH", f"{self.folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("COORDINATE_EVAL_RUNS_DIR", str(self.folder / "runs"))
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setattr(sys, "executable", str(self.folder / "bin" / "python"))
        monkeypatch.setattr(resume, "_START_SECONDS", 0.0)

    def program(self, name: str, text: str) -> Path:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def start(self, **slurm: Any) -> RunDir:
        settings = SlurmSettings.model_validate(slurm)
        self.reviewer.settings = self.reviewer.settings.model_copy(update={"slurm": settings})
        assert start_run(self.reviewer.inputs(tiny_model())) == 0
        return RunDir(Path(self.reviewer.capsys.readouterr().out.strip()))

    def started(self) -> str:
        """What a process was started with."""
        until(self.notes.exists, "a process")
        said = self.notes.read_text()
        self.notes.unlink()
        return said


@pytest.fixture
def login(reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch) -> Login:
    return Login(reviewer, monkeypatch)


def test_on_a_site_without_sbatch_on_nodes_the_supervisor_is_a_process(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    run_dir = login.start(supervisor="login")
    said = login.started()
    assert said.splitlines()[0] == f"-P -m coordinate_eval _supervise {run_dir.root}"
    assert "PATH=" in said
    assert "NCCL_DEBUG" not in said
    assert not login.reviewer.cluster.submitted


def test_a_run_that_has_lost_its_process_gets_another(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = login.start(supervisor="login")
    login.started()
    settings = login.reviewer.settings
    assert "is supervised by process" in supervise_from_here(settings)[0]
    login.started()
    alive = subprocess.Popen(["/bin/sh", "-c", "read end", "coordinate"], stdin=subprocess.PIPE)
    # Popen returns a moment before the process has the words of its command line.
    until(Path(f"/proc/{alive.pid}/cmdline").read_bytes, "its command line")
    monkeypatch.setattr(os, "getpid", lambda: alive.pid)
    take_over(run_dir)
    assert not supervise_from_here(settings)
    long_ago = time.time() - 2 * settings.supervisor.patience_seconds
    os.utime(run_dir.supervisors_folder, (long_ago, long_ago))  # as if its number were another's
    assert len(supervise_from_here(settings)) == 1
    login.started()
    alive.communicate()
    _files.write(run_dir.cancelled, "")
    assert not supervise_from_here(settings)


def test_a_supervisors_job_without_sbatch_hands_over_before_it_takes_over(
    login: Login, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = login.start()
    settings = login.reviewer.settings
    assert not supervise_from_here(settings)  # it has a job
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(Path.cwd())
    assert call(["_supervise", str(run_dir.root)]) == 0
    assert "there is no sbatch on" in capsys.readouterr().out
    assert latest_epoch(run_dir) == 0  # one that can submit goes on
    login.reviewer.cluster.submitted.clear()
    run = read_run(run_dir)
    found = state.progress(run_dir, run, [], silent=False, requests=0)
    assert found.phase is Phase.UNSUPERVISED
    assert "there is no sbatch on" in found.detail
    assert "`coordinate-eval watch` on a login node" in found.detail
    assert not supervise_from_here(settings)  # it is no login node, either
    monkeypatch.setenv("PATH", f"{login.folder / 'bin'}:/usr/bin:/bin")
    # At once: there is none that might be starting.
    monkeypatch.setattr(resume, "_START_SECONDS", 1.0)
    assert len(supervise_from_here(settings)) == 1
    assert "_supervise" in login.started()


def test_a_node_from_which_slurm_takes_nothing_is_told_from_settings_it_refuses(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "sbatch: error: Batch job submission failed: Access/permission denied"
    login.program("sbatch", f"echo '{words}' >&2; exit 1")
    login.program("scontrol", "")
    job = Job(name="n", argv=("x",), minutes=5, log=str(login.folder / "log"))
    cluster = SlurmCluster(SlurmSettings())
    with pytest.raises(SettingsRefused) as caught:
        cluster.submit(job)
    assert type(caught.value) is SettingsRefused
    monkeypatch.setenv(TASK_VARIABLE, "7.0")
    with pytest.raises(NotFromHere, match="Access/permission denied"):
        cluster.submit(job)


def test_a_supervisor_does_not_end_a_run_because_its_node_cannot_submit(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = login.start()

    def refused(job: Job) -> str:
        raise NotFromHere("Access/permission denied")

    monkeypatch.setattr(login.reviewer.cluster, "submit", refused)
    with pytest.raises(NotFromHere):
        Supervisor(run_dir, login.reviewer.cluster).run()
    assert not run_dir.results.exists()


def test_doctor_finds_a_node_without_sbatch(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    assert supervisor(Settings()).state == "ok"
    monkeypatch.setenv("PATH", "/nowhere")
    found = supervisor(Settings())
    assert found.state == "warning"
    assert "there is no sbatch on" in found.found
    assert "[slurm] supervisor" in found.do
    assert supervisor(Settings(slurm=SlurmSettings(supervisor="login"))).state == "ok"
