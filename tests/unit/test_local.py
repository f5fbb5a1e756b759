"""This machine as a cluster. `nvidia-smi` is a fake, and all else is real."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.cluster_contract import ENGINE, PROMISES, WAITS, Trial, engine_runs
from tests.runs import PATIENCE_SECONDS, until

from coordinate_eval.clusters.local import Gpus, LocalCluster, LocalSettings, find_gpus
from coordinate_eval.clusters.protocol import End, State
from coordinate_eval.errors import SubmitRefused, UserError

FOUR = "NVIDIA H100 80GB HBM3, 81559\n" * 4
H100 = "NVIDIA_H100_80GB_HBM3"


@pytest.fixture(autouse=True)
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the output of the fake, which fails without it."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat '{tmp_path}/found'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return tmp_path / "found"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Makes a trial of this machine with these resources. There is one at a time."""
    opened: list[LocalCluster] = []

    def make(**settings: int) -> Trial:
        cluster = LocalCluster(LocalSettings.model_validate(settings))
        opened.append(cluster)
        return Trial(cluster.__enter__(), tmp_path)

    yield make
    for cluster in opened:
        cluster.__exit__()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_what_every_cluster_promises(
    local: Callable[..., Trial], promise: Callable[[Trial], None]
) -> None:
    promise(local(gpus=2, cpus=4))


def test_how_a_job_ended_is_known(local: Callable[..., Trial]) -> None:
    trial = local(cpus=4)
    for name, script, end in (
        ("good", "exit 0", End.COMPLETED),
        ("bad", "exit 3", End.FAILED),
        ("killed", "kill -9 $$", End.FAILED),
    ):
        trial.submit(name, script)
        assert trial.ended(name) == {end}
    trial.cluster.cancel([trial.submit("cancelled", WAITS)])
    assert trial.ended("cancelled") == {End.CANCELLED}


def test_a_job_whose_log_is_a_link_fails_and_says_so(local: Callable[..., Trial]) -> None:
    trial = local()
    (trial.folder / "precious").write_text("mine")
    (trial.folder / "linked.log").symlink_to(trial.folder / "precious")
    trial.submit("linked", "echo lost")
    (task,) = trial.tasks("linked")
    assert (task.state, task.end) == (State.ENDED, End.FAILED)
    assert "linked.log is a link" in task.reason
    assert (trial.folder / "precious").read_text() == "mine"


def test_jobs_get_gpus_of_their_own_by_the_names_of_the_caller(
    found: Path, local: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    found.write_text(FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5ebe9f43,MIG-1/2")
    trial = local()
    script = 'echo "$CUDA_VISIBLE_DEVICES" > part.$$; mv part.$$ {name}; ' + WAITS
    first = trial.submit("first", script.format(name="first"), gpus=2)
    trial.submit("second", script.format(name="second"), gpus=1)
    assert trial.said("first") == "3,GPU-5ebe9f43\n"
    assert trial.said("second") == "MIG-1/2\n"
    trial.cluster.cancel([first])
    trial.submit("third", script.format(name="third"), gpus=1)
    until(lambda: trial.running("third"), "the end of the first")
    assert trial.said("third") == "3\n"
    with pytest.raises(SubmitRefused, match="4 GPUs are needed, and 3"):
        trial.submit("fourth", WAITS, gpus=4)


def test_jobs_without_gpus_share_the_cores_and_others_wait_for_none(
    local: Callable[..., Trial],
) -> None:
    trial = local(gpus=1, cpus=2)
    trial.submit("metric", WAITS, count=4)  # two more than there are: those mostly wait
    trial.submit("score", WAITS)
    trial.submit("keeper", WAITS, gpu_work=True, cpus=8)
    until(lambda: len(trial.running("metric")) == 4, "four to run")
    until(lambda: trial.running("keeper"), "the keeper to run")
    (waiting,) = trial.tasks("score")
    assert waiting.state is State.PENDING
    trial.cluster.cancel([trial.tasks("metric")[0].job_id + "_0"])
    until(lambda: trial.running("score"), "a core that is free again")
    trial.submit("large", "exit 0", cpus=99)  # gets all cores there are
    trial.cluster.cancel([trial.tasks("metric")[0].job_id, trial.tasks("score")[0].job_id])
    assert trial.ended("large") == {End.COMPLETED}


def test_a_job_that_waits_is_withdrawn(local: Callable[..., Trial]) -> None:
    trial = local(gpus=1)
    trial.submit("first", WAITS, gpus=1)
    second = trial.submit("second", "touch started", gpus=1)
    trial.cluster.cancel([second])
    assert trial.ended("second") == {End.CANCELLED}
    assert not (trial.folder / "second.log").exists()


@pytest.mark.parametrize("ends", ["kill -9 $$", "exit 3", "exit 0"])
def test_what_a_job_has_started_ends_with_it(local: Callable[..., Trial], ends: str) -> None:
    trial = local()
    trial.submit("job", f"{ENGINE} {ends}")
    assert trial.ended("job") == {End.COMPLETED if ends == "exit 0" else End.FAILED}
    until(lambda: not engine_runs(trial.folder), "the end of its engine")


SUPERVISOR = """
import os, sys, time
from coordinate_eval.clusters.local import LocalCluster, LocalSettings
from tests.cluster_contract import Trial
from pathlib import Path
with LocalCluster(LocalSettings()) as cluster:
    Trial(cluster, Path(sys.argv[1])).submit("job", sys.argv[2])
    time.sleep(36000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_job_and_all_it_has_started_end_with_their_supervisor(
    tmp_path: Path, how: signal.Signals
) -> None:
    script = f"{ENGINE} echo $$ > job.part; mv job.part job; wait"
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), script],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until((tmp_path / "job").exists, "its job")
    job = int((tmp_path / "job").read_text())
    supervisor.send_signal(how)
    supervisor.wait(PATIENCE_SECONDS)
    until(lambda: not Path(f"/proc/{job}").exists(), "the end of its job")
    until(lambda: not engine_runs(tmp_path), "the end of its engine")


GUARD = """
import sys
from coordinate_eval import _guard
sys.exit(_guard.run(0.1))
"""


def test_a_job_that_does_not_end_in_time_is_killed_with_all_it_has_started(tmp_path: Path) -> None:
    guard = subprocess.Popen([sys.executable, "-c", GUARD], stdin=subprocess.PIPE, cwd=tmp_path)
    assert guard.stdin is not None
    argv = ["sh", "-c", f"trap '' TERM; {ENGINE} wait; wait"]
    guard.stdin.write(json.dumps(argv).encode() + b"\n")
    guard.stdin.flush()
    until((tmp_path / "engine").exists, "its start")
    guard.stdin.close()
    assert guard.wait(PATIENCE_SECONDS) == 128 + signal.SIGKILL
    until(lambda: not engine_runs(tmp_path), "the end of its engine")


def gpus(
    environ: Mapping[str, str] | None = None, *, gpus: int | None = None, gib: float = 0.0
) -> Gpus:
    return find_gpus(LocalSettings(gpus=gpus), environ or {}, gib)


def test_all_gpus_are_used(found: Path) -> None:
    found.write_text(FOUR)
    names, variable, kind, gib = gpus()
    assert (names, variable, kind) == (("0", "1", "2", "3"), "CUDA_VISIBLE_DEVICES", H100)
    assert gib == pytest.approx(79.6, abs=0.1)
    assert gpus(gpus=2).names == ("0", "1")


@pytest.mark.parametrize(
    ("visible", "names"),
    [("2,3", ("2", "3")), ("GPU-5ebe9f43", ("GPU-5ebe9f43",)), ("0, 1,2", ("0", "1", "2"))],
)
def test_gpus_that_are_hidden_are_not(found: Path, visible: str, names: tuple[str, ...]) -> None:
    found.write_text(FOUR)
    assert gpus({"CUDA_VISIBLE_DEVICES": visible}).names == names
    assert gpus({"CUDA_VISIBLE_DEVICES": visible}, gpus=1).names == names[:1]


@pytest.mark.parametrize(("visible", "asked"), [("", None), ("-1", None), ("2,3", 3)])
def test_fewer_gpus_than_asked_for_are_refused(
    found: Path, visible: str, asked: int | None
) -> None:
    found.write_text(FOUR)
    settings = LocalSettings(gpus=asked)
    with pytest.raises(UserError, match=f"of this machine's 4 can be used .*{visible}"):
        find_gpus(settings, {"CUDA_VISIBLE_DEVICES": visible})


def test_more_gpus_than_there_are_are_refused(found: Path) -> None:
    found.write_text(FOUR)
    with pytest.raises(UserError, match="8 GPUs are needed, but only 4 of this machine's 4"):
        gpus(gpus=8)


def test_memory_that_is_not_told_is_unknown(found: Path) -> None:
    found.write_text("NVIDIA GB10, [N/A]\n")
    assert gpus()[2:] == ("NVIDIA_GB10", 0.0)
    assert gpus(gib=100)[2:] == ("NVIDIA_GB10", 100.0)


def test_gpus_of_amd_are_those_that_the_environment_names() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "2,GPU-1a", "CUDA_VISIBLE_DEVICES": "7"}
    assert gpus(environ, gib=192) == (
        ("2", "GPU-1a"), "ROCR_VISIBLE_DEVICES", "AMD", 192.0,
    )  # fmt: skip


def test_without_gpus_one_stands_for_the_processor() -> None:
    assert gpus({"CUDA_VISIBLE_DEVICES": ""}) == (("0",), "", "cpu", 0.0)
    assert gpus(gpus=3).names == ("0", "1", "2")
