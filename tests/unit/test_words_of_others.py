"""What others say in a job's log: a site's profile, a library, a checkpoint. It blames nothing."""

import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.decisions import ROUND, make_run
from tests.incidents import ECC, judge, trial
from tests.reviewer import FakeCluster
from tests.run_dirs import write_built

from coordinate_eval import _files, _job_log
from coordinate_eval.clusters.protocol import End, Job, State, TaskStatus
from coordinate_eval.coordinator.doctor.in_jobs import last_words
from coordinate_eval.coordinator.incidents.bad_nodes import (
    broken_nodes,
    read_avoided,
    suspected_nodes,
)
from coordinate_eval.coordinator.incidents.causes import find
from coordinate_eval.coordinator.incidents.incident import read_incidents
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.logs import tail
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Submitted, TrialProgress, read_run, write_run
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns
from coordinate_eval.coordinator.supervisor.placing.search import Search
from coordinate_eval.coordinator.supervisor.values import Hands
from coordinate_eval.coordinator.workers import trial as worker
from coordinate_eval.diagnosis.rules import shipped
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.simulated import SimulatedEngine
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings

PROFILES = [
    "/etc/profile.d/lmod.sh: line 12: tput: command not found",
    "/etc/bashrc: line 3: /opt/site/motd.sh: No such file or directory",
    "touch: cannot touch '/home/me/.last': Permission denied",
    # Python's own, before a program begins.
    "ModuleNotFoundError: No module named '_distutils_hack'",
]
"""Lines that a site's setup prints in every job, and every job survives."""

PASSING = {
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "storage": "OSError: [Errno 5] Input/output error: '/scratch/ckpt/model.safetensors'",
    "server": "requests.exceptions.ConnectionError: Connection refused by storage",
    "gpu": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
}
"""What trials may die of without the next ones dying of it too."""

MISSING = "ModuleNotFoundError: No module named 'vllm'"

UNLIKELY = "uncorrectable ECC error"
WORDS = (
    f"ValueError: The checkpoint you are trying to load has model type `{UNLIKELY}` but "
    "Transformers does not recognize this architecture. This could be because of an issue with "
    "the checkpoint, or because your version of Transformers is out of date."
)
"""What transformers says of a checkpoint whose `model_type` has these words."""


def began(before: str, after: str) -> str:
    """The log of a job whose program began."""
    return f"{before}\n\n{_job_log.LINE}\n{after}\n"


def traceback(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n{error}'


def diagnose(run_dir: RunDir, settings: Settings) -> list[d.Action]:
    """Have the logs of the dead trials of a round read; return what the supervisor does then."""
    run = read_run(run_dir)
    judge(run_dir, settings=settings)
    return decide(run, run_dir, gather_facts(run_dir, run, [], time.time(), Counter()))


def fail(run_dir: RunDir, log: str, said: str, cause: str = "other") -> list[d.Action]:
    """A trial on each of two nodes dies before its engine starts; return what follows."""
    folder = run_dir.root.parent
    settings = Settings(cache_dir=str(folder / "cache"), runs_dir=str(folder))
    run = make_run(settings=settings)
    _files.write_record(run_dir.run, run)
    nodes = [node.model_copy(update={"trials": 1}) for node in ROUND.nodes]
    now = time.time()
    round_ = ROUND.model_copy(update={"nodes": nodes, "created": now - 3600})
    _files.write_record(run_dir.round(0), round_)
    for node in ("n1", "n2"):
        path = run_dir.logs / f"{node}.log"
        _files.write(path, log)
        died = trial(f"{node}-0", node, message=said, cause=cause, log=str(path))
        _files.write_record(run_dir.trial(died.trial), died)
        name = jobs.trials_name(run, 0, node)
        job = Job(name=name, argv=("x",), minutes=1, log="/l")
        _files.write_record(run_dir.job(name), Submitted(job=job, job_id="1", time=now - 3000))
        _files.write(run_dir.released(0, node), "")
    return diagnose(run_dir, settings)


def ends(actions: list[d.Action]) -> str:
    return next((each.why for each in actions if isinstance(each, d.Finish)), "")


def goes_on(actions: list[d.Action]) -> bool:
    return not ends(actions) and any(isinstance(each, d.NewRound) for each in actions)


@pytest.mark.parametrize("noise", PROFILES)
@pytest.mark.parametrize("why", sorted(PASSING))
def test_a_line_that_every_job_prints_ends_no_run(tmp_path: Path, noise: str, why: str) -> None:
    log = began(noise, traceback(PASSING[why]))
    run_dir = RunDir(tmp_path / "run")
    assert goes_on(fail(run_dir, log, "EngineError: vLLM did not start"))
    quiet = RunDir(tmp_path / "quiet")
    fail(quiet, traceback(PASSING[why]), "EngineError: vLLM did not start")
    assert [each.reason for each in read_incidents(run_dir)] == [
        each.reason for each in read_incidents(quiet)
    ]


@pytest.mark.parametrize("noise", PROFILES)
def test_what_every_job_would_die_of_ends_a_run_also_below_such_a_line(
    tmp_path: Path, noise: str
) -> None:
    log = began(noise, traceback(MISSING))
    assert "Import Error" in ends(fail(RunDir(tmp_path / "run"), log, "EngineError: no"))
    log = began(noise, traceback(WORDS.replace(UNLIKELY, "x")))
    why = ends(fail(RunDir(tmp_path / "model"), log, "EngineError: no"))
    assert "Model Loading Error" in why


def test_arguments_that_an_engine_refuses_end_a_run_after_one_round(tmp_path: Path) -> None:
    said = (
        "vLLM did not start on '/c' with arguments {}: ValidationError: 1 validation error for "
        "VllmConfig … Value error, chunked prefill needs a longer batch [type=value_error, "
        "input_value=ArgsKwargs(()), input_type=ArgsKwargs]"
    )
    run_dir = RunDir(tmp_path / "run")
    why = ends(fail(run_dir, began("", "INFO loading"), said, "engine start"))
    assert "Value Error" in why
    assert "the engine refuses an argument" in why
    assert suspected_nodes(run_dir, time.time()) == {}


def test_a_job_that_never_began_has_all_of_its_log(tmp_path: Path) -> None:
    log = "slurm_script: line 20: /venv/bin/python: No such file or directory\n"
    assert "File Not Found Error" in ends(fail(RunDir(tmp_path / "run"), log, "EngineError: no"))


@pytest.mark.parametrize("why", ["memory", "storage", "gpu"])
def test_a_warning_below_the_line_ends_no_run_if_the_job_names_another_cause(
    tmp_path: Path, why: str
) -> None:
    warning = "mkdir -p failed for path /home/me/.config/matplotlib: [Errno 13] Permission denied"
    log = began("", f"{warning}\n{traceback(PASSING[why])}")
    said = f"EngineError: vLLM did not start: {PASSING[why]}"
    assert goes_on(fail(RunDir(tmp_path / "run"), log, said))
    both = f"EngineError: vLLM did not start: {MISSING}"
    assert ends(fail(RunDir(tmp_path / "missing"), log, both)), "it names what every job would meet"
    assert ends(fail(RunDir(tmp_path / "silent"), began("", warning), "EngineError: no"))


@pytest.mark.parametrize("why", ["memory", "storage", "gpu"])
def test_a_warning_ends_no_run_if_an_exception_of_another_process_has_a_cause(
    tmp_path: Path, why: str
) -> None:
    """An engine in other processes says only that one of them has ended."""
    warning = "mkdir -p failed for path /home/me/.config/matplotlib: [Errno 13] Permission denied"
    core = "(EngineCore pid=1375) ERROR 11-23 20:41:07 [core.py:1512] "
    said = "EngineError: Engine core initialization failed. See root cause above."
    log = began("", f"{warning}\n{core}{PASSING[why]}\nRuntime{said}")
    assert goes_on(fail(RunDir(tmp_path / "run"), log, said))
    log = began("", f"{warning}\n{core}{MISSING}\nRuntime{said}")
    assert "Import Error" in ends(fail(RunDir(tmp_path / "missing"), log, said))


@pytest.mark.parametrize("noise", PROFILES)
def test_builders_that_lose_a_connection_come_again_whatever_the_site_prints(
    tmp_path: Path, noise: str
) -> None:
    run_dir = RunDir(tmp_path / "run")
    settings = Settings(cache_dir=str(tmp_path / "cache"), runs_dir=str(tmp_path))
    write_run(run_dir, make_run(settings=settings, gpu_type="", shards=[]))
    run = read_run(run_dir)

    def die(log: str, array: int) -> list[d.Action]:
        tasks = []
        for index in (2 * array, 2 * array + 1):
            name = pullers_name(run, Pullers.BUILD, index)
            _files.write(run_dir.logs / f"{name}.{index}.log", log)
            job = Job(name=name, argv=("x",), minutes=1, log="/l")
            submitted = Submitted(job=job, job_id=str(index), time=time.time() - 300)
            _files.write_record(run_dir.job(name), submitted)
            ended = {"state": State.ENDED, "end": End.FAILED, "node": f"c{index}"}
            tasks.append(TaskStatus.model_validate({"name": name, "job_id": str(index), **ended}))
        judge(run_dir, tasks)
        return decide(run, run_dir, gather_facts(run_dir, run, tasks, time.time(), Counter()))

    again = die(began(noise, traceback(PASSING["server"])), 0)
    assert any(isinstance(each, d.Submit) for each in again)
    assert not ends(again)
    for path in run_dir.incidents_folder.iterdir():
        path.unlink()
    assert "Import Error" in ends(die(began(noise, traceback(MISSING)), 0))


@pytest.mark.parametrize("command", ["_build", "_keep", "_trial"])
def test_what_comes_before_a_job_loads_anything_is_not_its_cause(
    tmp_path: Path, command: str
) -> None:
    """A package on storage that fails is the cause, and not what came before."""
    package = tmp_path / "packages" / "pydantic"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise OSError(5, "Input/output error")\n')
    log = tmp_path / "job.log"
    python = shlex.join([sys.executable, "-P", "-m", "coordinate_eval", command, "/nowhere"])
    noise = " ".join(f"echo {shlex.quote(line)} >&2;" for line in PROFILES)
    with log.open("wb") as out:
        subprocess.run(
            ["bash", "-c", f"{noise} printf 'no end of line' >&2; exec {python}"],
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            stdout=out,
            stderr=out,
            check=False,
        )
    cause = find(str(log), "the scheduler says: failed", "failed", shipped(), 1 << 20)
    assert cause is not None
    assert (cause.reason, cause.then) == ("OS Error", "node")
    lines = log.read_text().splitlines()
    assert lines[cause.number - 1] == cause.line, "as an editor numbers them"


def test_a_program_that_is_not_there_is_named_and_not_what_the_setup_says(tmp_path: Path) -> None:
    setup = (f"echo {shlex.quote(PROFILES[2])} >&2",)
    job = Job(name="j", argv=("/nowhere/python",), minutes=1, folder=str(tmp_path), log="/l")
    script = submission(job, SlurmSettings(setup=setup)).script
    log = tmp_path / "job.log"
    with log.open("wb") as out:
        subprocess.run(["bash", "-c", script], stderr=out, check=False)
    cause = find(str(log), "it failed", "failed", shipped(), 1 << 20)
    assert cause is not None
    assert (cause.reason, "/nowhere/python" in cause.line) == ("File Not Found Error", True)


def test_a_job_that_starts_again_is_read_from_there(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(began("", traceback(MISSING)) + began("", traceback(PASSING["storage"])))
    cause = find(str(log), "", "", shipped(), 1 << 20)
    assert cause is not None
    assert cause.reason == "OS Error"


def test_people_are_shown_what_is_below_the_line(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(began(PROFILES[0], "it is broken"))
    assert tail(str(log)) == ["it is broken"]
    assert last_words(log) == "it is broken"
    log.write_text(began(PROFILES[0], ""))
    assert last_words(log) == ""


@pytest.mark.usefixtures("no_weights")
def test_what_a_checkpoint_makes_an_engine_say_that_starts_blames_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name of a token is printed at each start. Then the engine dies of an item."""
    log = tmp_path / "trial.log"
    monkeypatch.setattr(sys, "stderr", log.open("w", buffering=1))
    monkeypatch.setattr(worker, "own_log", lambda: str(log))
    (tmp_path / "memory").mkdir()
    run_dir = RunDir(tmp_path / "run")
    write_built(run_dir, {})
    start = SimulatedEngine.__init__

    def begin(self: SimulatedEngine, *args: object, **options: object) -> None:
        sys.stderr.write(ECC)
        start(self, *args, **options)  # type: ignore[arg-type]

    def die(_: SimulatedEngine, requests: object, unwanted: object) -> None:
        raise EngineError("vLLM failed: EngineDeadError: see above")

    monkeypatch.setattr(SimulatedEngine, "__init__", begin)
    monkeypatch.setattr(SimulatedEngine, "run", die)
    with pytest.raises(EngineError):
        worker.run_trial(run_dir, "n", 0, 60)
    died = _files.read_record(run_dir.trial("n-0"), TrialProgress)
    assert died.cause == "other"
    assert died.running is not None
    cause = find(died.log, died.message, "failed", shipped(), 1 << 20)
    assert cause is not None
    assert cause.reason != "ECC Error"


@pytest.mark.parametrize("words", [WORDS, WORDS.replace(UNLIKELY, f"x`\n{ECC}")])
def test_words_of_a_checkpoint_make_no_other_run_avoid_a_node(tmp_path: Path, words: str) -> None:
    settings = Settings(cache_dir=str(tmp_path / "cache"), runs_dir=str(tmp_path))
    cluster, runs = FakeCluster(), []
    for number in range(3):
        node = f"gpu{number}"
        run = make_run(id=f"r{number}", nonce=str(number), settings=settings)
        run_dir = RunDir(tmp_path / f"run{number}")
        _files.write_record(run_dir.run, run)
        nodes = [ROUND.nodes[0].model_copy(update={"name": node})]
        _files.write_record(run_dir.round(0), ROUND.model_copy(update={"nodes": nodes}))
        log = run_dir.logs / "t.log"
        _files.write(log, began("", words))
        said = f"EngineError: transformers could not load '/x': {words}"
        died = trial(f"{node}-0", node, cause="engine start", message=said, log=str(log))
        _files.write_record(run_dir.trial(died.trial), died)
        diagnose(run_dir, settings)
        clock = SetClock()
        hands = Hands(run_dir, cluster, clock, lambda _: None, lambda _: None)
        Search(hands, OtherRuns(run_dir, run, cluster, clock), 1.0).avoid_broken_nodes(run)
        runs.append((run_dir, node))
    assert not read_avoided(settings, time.time())
    for run_dir, node in runs:
        assert [*suspected_nodes(run_dir, time.time())] == [node], "the run itself looks on"


def test_hardware_that_failed_at_the_first_start_is_avoided_by_all_once_another_node_answers(
    tmp_path: Path,
) -> None:
    run_dir = RunDir(tmp_path / "run")
    fail(run_dir, began("", ECC), "EngineError: no")
    _files.write_record(run_dir.trial("n2-0"), trial("n2-0", "n2", "running"))
    run_dir.incident("n2-0").unlink()
    assert broken_nodes(run_dir) == []
    _files.write_record(run_dir.trial("n2-0"), trial("n2-0", "n2", "running", responses=1))
    assert [each.node for each in broken_nodes(run_dir)] == ["n1"]
