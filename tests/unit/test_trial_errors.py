"""Why trials fail: what only a process of the engine knows is read in the trial's own log."""

from pathlib import Path
from typing import Any

import pytest
from tests.run_dirs import SHARDS, write_built

from coordinate_eval import _files
from coordinate_eval.coordinator.incidents.causes import Failure, TrialErrors
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.logs import MOST_LOG_BYTES
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.coordinator.workers import trial
from coordinate_eval.coordinator.workers.on_node import whole_node
from coordinate_eval.coordinator.workers.open_shards import MOST_LOST
from coordinate_eval.errors import EngineError, RecordError, UserError
from coordinate_eval.evaluators.engines.simulated import SimulatedEngine

DEAD = EngineError(
    "vLLM failed: EngineDeadError: EngineCore encountered an issue. See stack trace (above) for "
    "the root cause."
)

# As vLLM 0.32 writes it with tensor parallelism.
WORKER = "(Worker_TP1 pid=1501) ERROR 11-23 20:41:07 [multiproc_executor.py:1063] "
CORE = "(EngineCore pid=1375) ERROR 11-23 20:41:07 [core.py:1512] "
FRAME = '  File "/venv/vllm/v1/executor/multiproc_executor.py", line 1055, in worker_busy_loop'


def log_of(*roots: str) -> str:
    """What a worker and the core of an engine write that fails with these words."""
    lines = [
        f"{WORKER}WorkerProc hit an exception.",
        f"{WORKER}Traceback (most recent call last):",
        WORKER + FRAME,
        f"{WORKER}    output = func(*args, **kwargs)",
        *(WORKER + root for root in roots),
        f"{CORE}EngineCore encountered a fatal error.",
        f"{CORE}Traceback (most recent call last):",
        CORE + FRAME,
        f"{CORE}    raise RuntimeError(",
        f"{CORE}RuntimeError: Worker failed with error 'an error', please check the stack trace",
    ]
    return "\n".join(lines) + "\n"


MEMORY = log_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.")
HOST = log_of("MemoryError: cannot allocate 8 GiB")
ECC = log_of("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")
XID = "NVRM: Xid (PCI:0000:9c:00): 79, GPU has fallen off the bus.\n" + log_of("RuntimeError: no")
NCCL = (
    "[rank1]:[E1123 20:41:07.1 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds before "
    "timing out.\n" + log_of()
)
KERNEL = log_of("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
KILLED = (
    f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.\n"
    f"{CORE}RuntimeError: Executor failed.\n"
)
CRASHED = KILLED.replace("-9", "-11")
ITEM = log_of("ValueError: no such token")

OF_MEMORY, OF_NODE = Failure("out of memory"), Failure("node", in_doubt=True)
OF_KILL = Failure("out of memory", killed=True)
OF_WORK, OF_START = Failure("other"), Failure("engine start")


def why(
    folder: Path, text: str, error: BaseException = DEAD, *, started: bool = True, before: str = ""
) -> Failure:
    log = folder / "trial.log"
    log.write_text(before)
    errors = TrialErrors(str(log), Settings())
    with log.open("a") as file:
        file.write(text)
    return errors.why(error, engine_started=started)


@pytest.mark.parametrize(
    ("text", "running", "starting"),
    [
        (MEMORY, OF_MEMORY, OF_MEMORY),
        (HOST, OF_KILL, OF_KILL),
        (KILLED, OF_KILL, OF_KILL),
        (CRASHED, OF_WORK, OF_START),
        (ECC, OF_NODE, OF_START),
        (XID, OF_NODE, OF_START),
        (NCCL, OF_NODE, OF_START),
        (KERNEL, OF_WORK, OF_START),
        (ITEM, OF_WORK, OF_START),
        ("", OF_WORK, OF_START),
    ],
    ids=[
        "memory", "host's memory", "killed", "crashed", "ecc", "xid", "nccl", "kernel", "item",
        "nothing",
    ],
)  # fmt: skip
def test_the_log_tells_what_an_engine_in_other_processes_died_of(
    tmp_path: Path, text: str, running: Failure, starting: Failure
) -> None:
    assert why(tmp_path, text) == running
    assert why(tmp_path, text, started=False) == starting


def test_an_engine_in_this_process_tells_it_by_its_error(tmp_path: Path) -> None:
    error = EngineError("vLLM failed: AcceleratorError: CUDA error: uncorrectable ECC error")
    assert why(tmp_path, "", error) == OF_NODE


def test_what_others_wrote_and_what_is_far_above_counts_for_nothing(tmp_path: Path) -> None:
    assert why(tmp_path, ITEM, before=MEMORY) == OF_WORK
    assert why(tmp_path, MEMORY + "x" * MOST_LOG_BYTES) == OF_WORK


def test_a_trial_that_cannot_begin_says_why(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    _files.write(run_dir.run, "{")
    with pytest.raises(RecordError):
        trial.run_trial(run_dir, "n1", 0, 60)
    (path,) = run_dir.trials_folder.iterdir()
    found = _files.read_record(path, TrialProgress)
    assert (found.state, found.cause) == ("failed", "other")
    assert str(run_dir.run) in found.message


def test_what_needs_no_log_reads_none(tmp_path: Path) -> None:
    assert why(tmp_path, MEMORY, UserError("no")) == Failure("input")
    assert why(tmp_path, MEMORY, RuntimeError("no")) == OF_WORK
    assert why(tmp_path, MEMORY, OSError(28, "No space left on device")) == Failure("node")
    assert TrialErrors("", Settings()).why(DEAD, engine_started=True) == OF_WORK
    gone = TrialErrors(str(tmp_path / "gone.log"), Settings())
    assert gone.why(DEAD, engine_started=True) == OF_WORK
    pipe = TrialErrors("/dev/null", Settings())
    assert pipe.why(DEAD, engine_started=True) == OF_WORK


def test_rules_of_a_site_count_and_none_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rules = tmp_path / "coordinate-eval" / "diagnosis.yaml"
    rules.parent.mkdir()
    log = tmp_path / "trial.log"

    def told(text: str) -> Failure:
        errors = TrialErrors(str(log), Settings())
        with log.open("a") as file:
            file.write(text)
        return errors.why(DEAD, engine_started=True)

    rules.write_text(
        "reasons: {Fabric: {category: infrastructure, then: node, cure: call}}\n"
        "rules: [{name: fabric, reason: Fabric, kind: decisive, pattern: fabric says no}]\n"
    )
    assert told("fabric says no\n") == OF_NODE
    rules.write_text("rules: 7\n")
    assert told("fabric says no\n") == OF_WORK
    assert told(MEMORY) == OF_MEMORY


@pytest.fixture
def run_dir(no_weights: None, tmp_path: Path) -> RunDir:
    """A planned run of simulated trials, which need no weights."""
    (tmp_path / "memory").mkdir()
    made = RunDir(tmp_path / "run")
    write_built(made, {})
    return made


def test_what_a_node_does_counts_against_no_item_unless_it_goes_on(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each engine dies at its first request, and its log blames the node."""
    log = tmp_path / "trial.log"
    log.touch()

    def die(_: SimulatedEngine, requests: Any, unwanted: Any) -> Any:
        next(requests)
        log.write_text(log.read_text() + NCCL)
        raise DEAD
        yield

    monkeypatch.setattr(trial, "own_log", lambda: str(log))
    monkeypatch.setattr(SimulatedEngine, "run", die)
    outputs, spans = Ledger(run_dir, "outputs"), [shard.span for shard in SHARDS]
    for number in range(MOST_LOST + 1):
        assert not outputs.suspects(spans)
        with pytest.raises(EngineError):
            trial.run_trial(run_dir, "n", number, 60)
        assert set(outputs.claimable(spans)) == set(spans)
        name = "n-0" + (f"-r{number}" if number else "")
        assert _files.read_record(run_dir.trial(name), TrialProgress).cause == "node"
    assert outputs.suspects(spans) == {spans[0]: 1}


def test_trials_of_a_whole_node_write_logs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_node, "own_log", lambda: str(tmp_path / "job.7.log"))
    for index in range(2):
        for text in (b"one ", b"two"):
            with whole_node._output(index) as output:
                assert output is not None
                output.write(text)
    logs = {path.name: path.read_text() for path in sorted(tmp_path.iterdir())}
    assert logs == {"job.7-0.log": "one two", "job.7-1.log": "one two"}
    monkeypatch.setattr(whole_node, "own_log", lambda: "")
    with whole_node._output(0) as output:
        assert output is None
