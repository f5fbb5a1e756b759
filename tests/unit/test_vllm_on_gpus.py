"""What vLLM is given for a GPU, and for a slice of one. The GPUs are made up."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinate_eval.evaluators.engines import vllm_defaults
from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.priors.conditions import sequences
from coordinate_eval.records import EngineSettings

WHOLE = 80 << 30


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chooses arguments for a GPU of a name and so many GiB in torch's eyes."""
    (tmp_path / "config.json").write_text('{"vocab_size": 128256}')

    def whole() -> int:
        return WHOLE

    platform = SimpleNamespace(
        is_cpu=lambda: False, is_cuda_alike=lambda: True, get_device_total_memory=whole
    )
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    monkeypatch.setattr(vllm_defaults, "check_args", lambda _: None)

    def choose(
        name: str, gib: float, *, gpus: int = 1, own_processes: str = "0", **args: Any
    ) -> dict[str, Any]:
        alone = gpus == 1 and own_processes == "0" and "distributed_executor_backend" not in args

        def properties(device: int) -> SimpleNamespace:
            assert device == 0
            assert alone, "CUDA is touched before a process is forked"
            return SimpleNamespace(name=name, total_memory=int(gib * 2**30))

        cuda = SimpleNamespace(get_device_properties=properties)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setenv(vllm_defaults.OWN_PROCESSES, own_processes)
        return vllm_defaults.engine_arguments(Loading(tmp_path, gpus, 2048, args))

    return choose


@pytest.mark.parametrize(
    ("slice_", "gib", "tokens"),
    [("1g.10gb", 9.5, 1024), ("3g.40gb", 39.5, 2560), ("7g.80gb", 79.2, 5120)],
)
def test_a_slice_is_no_whole_gpu(chosen: Any, slice_: str, gib: float, tokens: int) -> None:
    found = chosen(f"NVIDIA H100 80GB HBM3 MIG {slice_}", gib)
    assert found["max_num_batched_tokens"] == tokens
    assert found["max_num_seqs"] == sequences(EngineSettings(), f"h100_{slice_}")


def test_a_users_arguments_hold_on_a_slice(chosen: Any) -> None:
    name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert chosen(name, 4.75, max_num_seqs=7)["max_num_seqs"] == 7
    whole_prompts = chosen(name, 4.75, enable_chunked_prefill=False)
    assert whole_prompts["max_num_seqs"] == 256
    assert "max_num_batched_tokens" not in whole_prompts


def test_vllm_chooses_the_sequences_of_a_whole_gpu(chosen: Any) -> None:
    found = chosen("NVIDIA H100 80GB HBM3", 79.2)
    assert found["max_num_batched_tokens"] == 5120
    assert "max_num_seqs" not in found


@pytest.mark.parametrize(
    "how", [{"gpus": 2}, {"own_processes": "1"}, {"distributed_executor_backend": "mp"}]
)
def test_an_engine_with_processes_finds_cuda_untouched(chosen: Any, how: dict[str, Any]) -> None:
    found = chosen("", 0, **how)
    assert found["max_num_batched_tokens"] == 5120
    assert "max_num_seqs" not in found
