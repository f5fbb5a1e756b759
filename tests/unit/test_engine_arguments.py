"""Engine arguments are checked before anything is submitted, without torch or the engine."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import RUN
from tests.plans import changed
from tests.reviewer import Reviewer
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.clusters.containers import ContainerSettings
from coordinate_eval.coordinator.cli.launch import run
from coordinate_eval.coordinator.cli.launch.dry_run import show_plan
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.on_node.keeper import run_keeper
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines import vllm_arguments
from coordinate_eval.evaluators.engines.base import by_name
from coordinate_eval.records import EngineSettings

ARG_UTILS = '''
from typing import TYPE_CHECKING, Any, Literal
if TYPE_CHECKING:
    from vllm.config import Backend, DType

class EngineArgs:
    """Arguments."""
    model: str = "m"
    dtype: "DType" = "auto"
    backend: Backend | None = None
    quantization: Unheard | str | None = None
    config: VllmConfig = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.9
    sizes: list[int] | None = None
    params: set[str] = ()
    overrides: dict[str, Any] | None = None
    mode: Literal["warn", "error", 3] = "warn"
    _private: int = 0
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like vLLM, of which nothing can be imported."""
    root = tmp_path / "vllm"
    for name, text in {
        "__init__.py": "raise SystemError('imported')",
        "engine/arg_utils.py": ARG_UTILS,
        "config/__init__.py": "from vllm.config.model import DType, Backend",
        "config/model.py": "DType = Literal['auto', 'float32']\nBackend = Literal['a-b', 'c']",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    assert importlib.util.find_spec("vllm") is not None
    return root


@pytest.mark.parametrize(
    "args",
    [
        {"dtype": "float32", "max_num_seqs": 8, "enforce_eager": True},
        {"backend": "A_B"},
        {"backend": None, "max_num_seqs": None},
        {"quantization": "fp8", "config": {"level": 3}, "overrides": {"a": [1]}},
        {"gpu_memory_utilization": 1, "sizes": [1, 2], "params": ["a"], "mode": 3},
    ],
)
def test_right_arguments_are_taken(installed: Path, args: dict[str, Any]) -> None:
    by_name("vllm").check_args(args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_num_seq": 8}, "'max_num_seq': did you mean max_num_seqs"),
        ({"--max-num-seqs": 8}, "did you mean max_num_seqs"),
        ({"_private": 8}, "no engine argument '_private'"),
        ({"zzz": 8}, "no engine argument 'zzz'"),
        ({"dtype": "fp16"}, "dtype is 'fp16', and must be one of auto, float32"),
        ({"backend": "d"}, "backend is 'd', and must be one of a-b, c or null"),
        ({"mode": "3"}, "mode is '3', and must be one of warn, error, 3"),
        ({"max_num_seqs": "8"}, "max_num_seqs is '8', and must be a whole number or null"),
        ({"max_num_seqs": True}, "max_num_seqs is True"),
        ({"enforce_eager": 1}, "enforce_eager is 1, and must be true or false"),
        ({"gpu_memory_utilization": "0.9"}, "must be a number"),
        ({"sizes": [1, "2"]}, "must be a list, each of it a whole number or null"),
        ({"overrides": "x"}, "must be an object or null"),
    ],
)
def test_wrong_arguments_are_named(installed: Path, args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        by_name("vllm").check_args(args)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"model": "/x"}, "model cannot be given: it is set from the checkpoint"),
        ({"trust_remote_code": True}, "never run"),
        ({"max_model_len": 9}, r"max_model_len cannot be given.* \[trial\] max_length"),
        ({"pipeline_parallel_size": 2}, r"\[trial\] tensor_parallel"),
        ({"load_format": "pt"}, "load_format='pt' may run code"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode='raw_logits' gives logits"),
    ],
)
def test_arguments_of_the_program_are_refused_wherever_vllm_is(
    args: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=words):
        by_name("vllm").check_args(args)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "class EngineArgs(Base):\n  a: int = 1\n",
        "class EngineArgs:\n  pass\n",
        "class EngineArgs:\n  zzz: 'int or' = 1\n",
        "def (",
    ],
)
def test_names_are_not_checked_against_a_source_that_is_not_understood(
    installed: Path, text: str
) -> None:
    (installed / "engine" / "arg_utils.py").write_text(text)
    by_name("vllm").check_args({"zzz": 1})


def test_names_are_not_checked_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    by_name("vllm").check_args({"zzz": 1})


def test_the_keeper_in_an_image_checks_the_names_by_the_image_s_vllm(
    installed: Path, tmp_path: Path
) -> None:
    args = {"max_num_seq": 8}
    by_name("vllm").check_args(args, here=False)
    with pytest.raises(UserError, match="trust_remote_code cannot be given"):
        by_name("vllm").check_args({"trust_remote_code": True}, here=False)
    engine = EngineSettings(name="vllm", args=args)
    image = ContainerSettings(runtime="podman", image="vllm:1")
    run_dir = RunDir(tmp_path)
    made = changed(RUN, settings=Settings(engine=engine, container=image))
    _files.write_record(run_dir.run, made)
    why = "coordinate-eval: container: image vllm:1: .*'max_num_seq': did you mean max_num_seqs"
    with pytest.raises(SystemExit, match=why):
        run_keeper(run_dir, "node1", 0, 30)


@pytest.mark.parametrize(
    ("engine", "args", "words"),
    [
        ("transformers", {"batchsize": 1}, "'batchsize': did you mean batch_size"),
        ("transformers", {"zzz": 1}, "it has batch_size, device, dtype"),
        ("transformers", {"batch_size": 0}, "batch_size is 0"),
        ("transformers", {"dtype": "fp16"}, "dtype is 'fp16', and must be one of auto, float32"),
        ("transformers", {"dtype": ["auto"]}, "dtype"),
        ("transformers", {"device": "cudaa"}, "device is 'cudaa'"),
        ("simulated", {"start_second": 1}, "did you mean start_seconds"),
    ],
)
def test_other_engines_name_wrong_arguments(engine: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        by_name(engine).check_args(args)
    assert words in str(caught.value)


def test_other_engines_take_right_arguments() -> None:
    by_name("transformers").check_args({"batch_size": 2, "dtype": "float32", "device": "cuda:1"})
    by_name("transformers").check_args({})
    by_name("simulated").check_args({"start_seconds": 0.5, "fail_after": None})


def test_the_installed_vllm_is_understood() -> None:
    """Every default that its source spells out has a type that is taken."""
    root = vllm_arguments._installed()
    if root is None or not (root / "engine" / "arg_utils.py").exists():
        pytest.skip("vLLM is not installed")
    by_name("vllm").check_args(
        {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 256}
    )
    by_name("vllm").check_args(
        {"enforce_eager": True, "kv_cache_dtype": "fp8", "compilation_config": {}}
    )
    with pytest.raises(UserError, match="did you mean max_num_seqs"):
        by_name("vllm").check_args({"max_num_seq": 8})
    with pytest.raises(UserError, match=r"one of auto, .*float32"):
        by_name("vllm").check_args({"dtype": "float33"})
    (arguments,) = [
        node
        for node in ast.parse((root / "engine" / "arg_utils.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"
    ]
    checked = 0
    for field in arguments.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Constant):
            name = ast.unparse(field.target)
            if name not in vllm_arguments._OURS:
                by_name("vllm").check_args({name: field.value.value})
                checked += 1
    assert checked > 10


def test_weights_whose_quantization_vllm_does_not_know_are_refused(installed: Path) -> None:
    folder = installed / "model_executor" / "layers" / "quantization"
    vllm_arguments.check_quantization("anything")  # the module has moved
    folder.mkdir(parents=True)
    text = 'from typing import Literal\nQuantizationMethods = Literal["fp8", "inc"]\n'
    (folder / "__init__.py").write_text(text)
    vllm_arguments._parsed.cache_clear()
    for method in ("", "fp8", "auto-round"):
        vllm_arguments.check_quantization(method)
    with pytest.raises(UserError, match=r"quantized by gguf, which .* not know \(fp8, inc\)"):
        vllm_arguments.check_quantization("gguf")


def test_checking_loads_neither_torch_nor_an_engine() -> None:
    program = """
import sys
from coordinate_eval.evaluators.engines.base import by_name
for engine, args in ("vllm", {"max_num_seqs": 8}), ("transformers", {}), ("simulated", {}):
    by_name(engine).check_args(args)
assert not {"torch", "vllm", "transformers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("dry_run", [True, False])
def test_nothing_is_built_or_submitted_with_wrong_arguments(
    reviewer: Reviewer, dry_run: bool
) -> None:
    engine = EngineSettings(name="transformers", args={"batchsize": 1})
    reviewer.settings = reviewer.settings.model_copy(update={"engine": engine})
    submit = show_plan if dry_run else run.start_run
    with pytest.raises(UserError, match="did you mean batch_size"):
        submit(reviewer.inputs(tiny_model()))
    assert not reviewer.cluster.submitted
    assert not (reviewer.folder / "runs").exists()
