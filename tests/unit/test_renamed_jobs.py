"""A site that changes the names of jobs, by which a run finds them."""

import json
import time
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.reviewer import Cancelling

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE, TaskStatus
from coordinate_eval.coordinator.cli import job_commands
from coordinate_eval.coordinator.cli.inquire import status
from coordinate_eval.coordinator.doctor import in_jobs
from coordinate_eval.coordinator.doctor.findings import State as Found
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.errors import ClusterSilent


class Renaming(Cancelling):
    """A scheduler that puts something before or behind the names of jobs."""

    def __init__(self, before: str = "", behind: str = "") -> None:
        super().__init__()
        self.before, self.behind = before, behind
        self.silent = False

    def poll(self, prefix: str) -> list[TaskStatus]:
        if self.silent:
            raise ClusterSilent("no route to host")
        found = [
            each.model_copy(update={"name": f"{self.before}{each.name}{self.behind}"})
            for each in super().poll("")
        ]
        return [each for each in found if each.name.startswith(prefix)]


class Begun(Exception):
    """The supervisor has begun."""


class Site:
    """A run whose supervisor is a job of a cluster."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.dir = Renaming(), RunDir(folder)
        self.settings = Settings(runs_dir=str(folder), cluster="slurm")
        self.run = make_run(folder=str(folder))
        _files.write_record(self.dir.run, self.run)
        monkeypatch.setattr(clusters, "by_name", lambda name, settings: self.cluster)
        monkeypatch.setattr(Supervisor, "run", self._begin)
        self._monkeypatch = monkeypatch

    def supervise(self, *, in_job: bool = True) -> int:
        """Do what the supervisor's job does, and return its exit status."""
        number = self.cluster.submit(jobs.supervisor_job(self.run, self.dir, 1, time.time()))
        if in_job:
            self._monkeypatch.setenv(TASK_VARIABLE, f"{number}.0")
        else:
            self._monkeypatch.delenv(TASK_VARIABLE, raising=False)
        return job_commands.supervise(self.dir)

    @staticmethod
    def _begin(supervisor: Supervisor) -> None:
        raise Begun


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize(("before", "behind"), [("root_", ""), ("", "_gpu")])
def test_a_run_whose_jobs_are_renamed_ends_at_once_and_says_so(
    site: Site, before: str, behind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.cluster.before, site.cluster.behind = before, behind
    assert site.supervise() == 1
    name = f"{before}{jobs.supervisor_name(site.run, 1)}{behind}"
    assert name in capsys.readouterr().out
    assert len(site.cluster.submitted) == 1
    reason = json.loads(site.dir.results.read_text())["reason"]
    shown = status.describe(site.dir, site.run, site.settings, 0)
    assert shown["phase"] == "incomplete"
    for words in (reason, " ".join(shown["reasons"])):
        assert name in words
        assert "job_submit plugin" in words


def test_a_supervisor_by_its_own_name_begins(site: Site) -> None:
    with pytest.raises(Begun):
        site.supervise()


def test_nothing_is_compared_outside_of_a_job_or_where_the_scheduler_is_silent(site: Site) -> None:
    site.cluster.before = "root_"
    with pytest.raises(Begun):
        site.supervise(in_job=False)
    site.cluster.silent = True
    with pytest.raises(Begun):
        site.supervise()


def test_the_doctor_names_what_became_of_a_name(site: Site) -> None:
    site.cluster.before = "root_"
    answers = list(in_jobs.ask(site.settings, "slurm", lambda _: None))
    findings = [finding for each in answers for finding in each.findings]
    assert [each.check for each in findings] == ["job name"] * len(site.cluster.submitted)
    assert all(each.state is Found.FAILURE and "'root_ce-doctor" in each.found for each in findings)
    assert site.cluster.cancelled == ["1", "2"]
