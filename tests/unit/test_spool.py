"""A run that is asked for where nobody can submit waits in the spool until somebody does."""

import errno
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.reviewer import FakeCluster
from tests.runs import TASKS
from tests.tiny import tiny_model
from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.launch import spooled
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.cli.launch.spooled import Taker
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.starting import spool
from coordinate_eval.coordinator.run.starting.spool import HELD_SECONDS, MOST_REFUSALS, Waiting
from coordinate_eval.errors import ClusterSilent, ForeignError, UserError

SUITE = f"include_path: ['{TASKS}']\ndatasets: [{{name: tiny_cloze, task: tiny_cloze}}]\n"


class Site:
    """A checkpoint, a container without sbatch, and a login node with one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.runs = folder / "runs"
        self.checkpoint = folder / "ckpts" / "step-7"
        shutil.copytree(tiny_model(), self.checkpoint)
        (folder / "suite.yaml").write_text(SUITE)
        self.cluster = FakeCluster()
        monkeypatch.setitem(clusters._MAKERS, "slurm", lambda _: self.cluster)
        (folder / "login").mkdir()
        (folder / "login" / "sbatch").write_text("#!/bin/sh\n")
        (folder / "login" / "sbatch").chmod(0o755)
        monkeypatch.chdir(TASKS)
        for name, value in {
            "HOME": str(folder),
            "COORDINATE_EVAL_RUNS_DIR": str(self.runs),
            "COORDINATE_EVAL_CACHE_DIR": str(folder / "cache"),
        }.items():
            monkeypatch.setenv(name, value)

    def saves(self, *options: str) -> Result:
        """Ask in the container, as `after_save` does."""
        self._patch.setenv("PATH", "/nowhere")
        args = ["run", str(self.checkpoint), "--queue", "--no-strict", "--cluster=slurm"]
        args += ["--engine=simulated", f"--suite={self.folder / 'suite.yaml'}", "--step=7"]
        return CliRunner().invoke(app, [*args, *options], catch_exceptions=False)

    def watches(self, *options: str) -> Result:
        """Look once on the login node."""
        self._patch.setenv("PATH", str(self.folder / "login"))
        args = ["watch", "--once", *options]
        return CliRunner().invoke(app, args, catch_exceptions=False)

    def requests(self) -> list[dict[str, Any]]:
        """What `watch` says of the requests, as it leaves them."""
        rows: list[dict[str, Any]] = json.loads(self.watches("--json").stdout)["requests"]
        return rows

    def waiting(self, later: float = 0.0) -> list[Waiting]:
        return list(spool.waiting(self.runs, time.time() + later))

    def run(self) -> dict[str, Any]:
        """The only run there is, with one supervisor."""
        (root,) = self.runs.glob("*/run.json")
        assert [job.name.rpartition("-")[2] for job in self.cluster.submitted] == ["super1"]
        found: dict[str, Any] = json.loads(root.read_text())
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_request_becomes_the_run_that_was_asked_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has become of suite and settings since."""
    monkeypatch.setenv("COORDINATE_EVAL_TRIAL_MAX_LENGTH", "64")
    monkeypatch.setenv("COORDINATE_EVAL_SLURM_PARTITION", "theirs")
    said = site.saves("--limit=3", "--json")
    assert said.exit_code == 4
    asked = json.loads(said.stdout)
    assert (asked["state"], asked["job"]) == ("requested", None)
    assert not site.cluster.submitted
    monkeypatch.delenv("COORDINATE_EVAL_TRIAL_MAX_LENGTH")
    monkeypatch.setenv("COORDINATE_EVAL_SLURM_PARTITION", "mine")
    monkeypatch.setenv("COORDINATE_EVAL_SLURM_ACCOUNT", "added")
    (site.folder / "suite.yaml").unlink()
    (row,) = site.requests()
    assert (row["state"], row["error"], row["step"]) == ("submitted", None, 7)
    run = site.run()
    assert run["id"] == asked["run"] == Path(row["run"]).name
    assert (run["step"], run["strict"], run["max_length"]) == (7, False, 64)
    assert run["suite"]["datasets"][0]["limit"] == 3
    assert (run["settings"]["queue"], run["settings"]["engine"]["name"]) == (True, "simulated")
    slurm = run["settings"]["slurm"]
    assert (slurm["partition"], slurm["account"]) == ("theirs", "added")
    assert not site.waiting()
    assert not list(site.runs.glob(".spool-*/*"))


def test_a_request_from_a_container_has_the_submitters_container(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.saves()
    monkeypatch.setenv("COORDINATE_EVAL_CONTAINER_RUNTIME", "podman")
    monkeypatch.setenv("COORDINATE_EVAL_CONTAINER_IMAGE", "theirs")
    monkeypatch.setenv("COORDINATE_EVAL_CONTAINER_IMAGES", '{"metric": "small"}')
    (row,) = site.requests()
    assert (row["state"], row["error"]) == ("submitted", None)
    container = site.run()["settings"]["container"]
    assert (container["runtime"], container["image"]) == ("podman", "theirs")
    assert container["images"] == {"metric": "small"}


def test_a_command_says_which_of_the_two_it_did(site: Site) -> None:
    requested = site.saves()
    assert requested.exit_code == 4
    assert Path(requested.stdout.strip()).is_file()
    assert "is requested: there is no sbatch on" in requested.stderr
    assert "coordinate-eval watch" in requested.stderr
    assert site.saves("--limit=1", "--dry-run", "--estimate").exit_code == 0
    assert len(site.waiting()) == 1


def test_asking_twice_is_asking_once_also_when_the_run_is_there(site: Site) -> None:
    assert {site.saves().stdout for _ in range(2)} == {f"{site.waiting()[0].path}\n"}
    assert site.watches().exit_code == 0
    site.saves()
    assert site.watches().exit_code == 0
    site.run()
    assert not site.waiting()


def test_status_and_runs_name_what_waits(site: Site) -> None:
    site.saves()
    for command in ("status", "runs"):
        said = CliRunner().invoke(app, [command])
        assert f"{site.checkpoint}: requested" in said.stderr


def test_who_cannot_submit_takes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.saves()
    monkeypatch.setenv("PATH", "/nowhere")
    assert CliRunner().invoke(app, ["watch", "--once"]).exit_code == 0
    assert site.watches("--dry-run").exit_code == 0
    assert [each.number for each in site.waiting()] == [0]


def test_what_is_refused_blocks_no_other_and_is_not_tried_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.saves("--partition=bad")
    site.saves("--partition=good")
    tries: list[Path] = []

    def refusing(inputs: Any, root: Path) -> int:
        if inputs.settings.slurm.partition == "bad":
            tries.append(root)
            raise UserError("no such partition")
        return start_run(inputs, root)

    monkeypatch.setattr(spooled, "start_run", refusing)
    assert site.watches().exit_code == 2
    site.run()
    later = 0.0
    for _ in range(3 * MOST_REFUSALS):
        assert site.watches().exit_code == 2  # it still waits, and is not tried before its time
        later += 4000
        monkeypatch.setattr(time, "time", lambda real=time.time, more=4000: real() + more)
    assert len(tries) == MOST_REFUSALS
    (left,) = site.waiting()
    assert left.state == f"given up after {MOST_REFUSALS} refusals"
    assert "no such partition" in left.words()
    site.saves("--partition=bad")  # asked for again
    site.watches()
    assert len(tries) == MOST_REFUSALS + 1


def test_silence_counts_against_nothing_and_ends_the_look(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.saves()

    def silent(*_: Any) -> int:
        raise ClusterSilent("no answer")

    monkeypatch.setattr(spooled, "start_run", silent)
    for _ in range(2 * MOST_REFUSALS):
        with pytest.raises(ClusterSilent):
            site.watches()
        monkeypatch.setattr(time, "time", lambda real=time.time: real() + 4000)
    (left,) = site.waiting(4000)
    assert left.due
    assert left.error == "no answer"


def test_a_checkpoint_that_is_gone_or_replaced_is_dropped(site: Site) -> None:
    site.saves()
    shutil.rmtree(site.checkpoint)
    (row,) = site.requests()
    assert (row["state"], row["error"]) == ("dropped", "the checkpoint is gone")
    shutil.copytree(tiny_model(), site.checkpoint)
    site.saves()
    weights = site.checkpoint / "model.safetensors"
    os.utime(weights, (1, 1))
    (row,) = site.requests()
    assert row["state"] == "dropped"
    assert "has changed" in row["error"]
    assert not site.waiting()
    assert not site.cluster.submitted


def test_a_path_of_the_container_is_found_by_its_mounts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.saves(f"--run-dir={site.folder / 'ckpts' / 'run'}")
    (site.folder / "ckpts").rename(site.folder / "lustre")
    assert site.requests()[0]["error"]
    mounts = [f"{site.folder}/lustre:{site.folder}/ckpts", "/dev/shm"]
    monkeypatch.setenv("COORDINATE_EVAL_CONTAINER_MOUNTS", json.dumps(mounts))
    later = time.time() + 1  # a file system may tell no two times apart that are close
    os.utime(site.waiting()[0].path, (later, later))
    (row,) = site.requests()
    assert row["state"] == "submitted"
    assert row["run"] == str(site.folder / "lustre" / "run")
    made = json.loads((site.folder / "lustre" / "run" / "run.json").read_text())
    assert made["checkpoint"]["path"] == str(site.folder / "lustre" / "step-7")


def test_a_path_that_leads_elsewhere_here_drops_nothing(site: Site) -> None:
    site.saves()
    (site.folder / "ckpts").rename(site.folder / "inside")
    (row,) = site.requests()
    assert row["state"].startswith("not submitted, next try in")
    assert "is not the folder here that it was where" in row["error"]
    assert f'["SOURCE:{site.folder}/ckpts"]' in row["error"]
    (site.folder / "ckpts").mkdir()  # another one
    assert "is not the folder" in site.requests()[0]["error"]
    assert len(site.waiting()) == 1


@pytest.mark.parametrize(
    "content", ['{"schema": "coord', '{"schema": "coordinate-eval/spooled@2"}']
)
def test_a_torn_or_newer_file_is_named_and_blocks_no_other(site: Site, content: str) -> None:
    site.saves("--limit=1")
    (torn,) = (each.path for each in site.waiting())
    torn.write_text(content)
    site.saves()
    rows = {row["request"]: row for row in site.requests()}
    assert rows.pop(str(torn))["state"] == "not read"
    assert [row["state"] for row in rows.values()] == ["submitted"]
    assert torn.read_text() == content


def test_an_attempt_is_held_until_it_ends_or_its_holder_is_dead(site: Site) -> None:
    site.saves()
    (first,), (second,) = site.waiting(), site.waiting()
    now = time.time()
    assert first.take(now)
    assert not second.take(now)
    assert [each.state for each in site.waiting()] == ["being submitted"]
    (late,) = site.waiting(HELD_SECONDS + 1)
    assert late.due
    assert late.take(now)
    first.done()  # the one that was declared dead was only slow
    assert not site.waiting()


def test_a_spool_that_is_not_the_users_own_is_refused(site: Site) -> None:
    (spooled,) = (Path(site.saves().stdout.strip()).parent,)
    spooled.chmod(0o777)
    with pytest.raises(ForeignError, match="other users can write to it"):
        site.saves()
    said = site.watches()
    assert said.exit_code == 2
    assert said.stderr.count("other users can write to it") == 1
    assert not site.cluster.submitted


def test_a_spool_that_is_full_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.saves("--limit=1")

    def full(*_: Any) -> bool:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patched:
        patched.setattr(_files, "create", full)
        with pytest.raises(UserError, match=r"cannot be written to .*: Disk quota exceeded"):
            site.saves()
        assert site.watches().exit_code == 2
    assert site.watches().exit_code == 0
    site.run()


def test_what_killed_processes_left_is_removed(site: Site) -> None:
    path = Path(site.saves().stdout.strip())
    draft = path.with_name(f".{path.name}.0123456789abcdef.tmp")
    draft.write_text("{")
    os.utime(draft, (1, 1))
    (entry,) = site.waiting()
    assert entry.take(time.time())
    path.unlink()
    assert not site.waiting()
    assert not list(path.parent.iterdir())


def test_a_supervisor_has_what_is_due_submitted_by_a_child(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = site.folder / "said"
    python = site.folder / "login" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>"{said}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    site.saves()
    root = site.folder / "other"
    run = make_run(cluster="slurm", settings=Settings(runs_dir=str(site.runs)))
    without_sbatch = Taker(RunDir(root), run)
    monkeypatch.setenv("PATH", f"{site.folder / 'login'}:/usr/bin:/bin")
    for taker in (Taker(RunDir(root), run), without_sbatch):
        with taker:
            for _ in range(3):
                taker.look()
    assert said.read_text() == f"-P -m coordinate_eval _submit {root}\n"
    said.unlink()
    site.waiting()[0].done()
    with Taker(RunDir(root), run) as taker:  # nothing is due
        taker.look()
    assert not said.exists()
