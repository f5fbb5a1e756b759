"""Adapters that vLLM serves by its own LoRA: which are refused, and what nodes hold for them."""

import contextlib
import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.mixes import adapted, saved
from tests.plans import CHECKPOINT

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.mixed import served
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import lease
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.on_node.staging import (
    StagedWeights,
    adapter_files,
    weights_name,
)
from coordinate_eval.errors import UserError, WeightsRefused
from coordinate_eval.evaluators.engines.vllm_lora import arguments
from coordinate_eval.records import CheckpointFormat

files: Any = importlib.import_module("safetensors.torch")
SERVE = {"enable_lora": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("training") / "base", 1)


def run_of(checkpoint: Path, root: Path, **args: object) -> Run:
    settings = {"engine": {"args": args}, "stage": {"root": str(root)}}
    found = checkpoints.inspect(checkpoint)
    return make_run(checkpoint=found, settings=Settings.model_validate(settings))


def weights_of(run: Run) -> StagedWeights:
    return StagedWeights(run.settings.stage.folder, weights_name(run), "n1")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_dora": True}, "is DoRA"),
        ({"modules_to_save": ["lm_head"]}, r"factors of low rank, such as .*lm_head"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "has .* such as .*embed_tokens"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"r": 513}, "rank 513, and vLLM takes 512 at most"),
    ],
)
def test_what_vllm_does_not_serve_is_refused(
    base: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    adapted(base, tmp_path / "adapter", **config)
    refused = rf"(?:{words}).* leave engine argument enable_lora out, and the adapter is merged"
    with pytest.raises(UserError, match=refused):
        served.check(checkpoints.inspect(tmp_path / "adapter"), SERVE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.0.self_attn.kv_b_proj.lora_B.weight", "which latent attention absorbs"),
        ("model.layers.0.mlp.experts.1.up_proj.lora_B.weight", "adapts experts"),
        ("model.layers.0.mlp.experts.base_layer.lora_B.weight", "adapts experts"),
        ("model.layers.0.mlp.up_proj.lora_B.bias", "has a bias of .*up_proj"),
    ],
)
def test_what_vllm_would_leave_out_is_refused(tmp_path: Path, name: str, words: str) -> None:
    torch: Any = importlib.import_module("torch")
    module, _, kind = f"base_model.model.{name}".partition(".lora_B.")
    names = [f"{module}.lora_A.weight", f"{module}.lora_B.weight", f"{module}.lora_B.{kind}"]
    weights, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    files.save_file({each: torch.zeros(2, 2) for each in names}, weights)
    config.write_text(json.dumps({"peft_type": "LORA"}))
    files_of = {"path": str(tmp_path), "weights": [str(weights), str(config)]}
    found = CHECKPOINT.model_copy(update={"format": CheckpointFormat.ADAPTER, **files_of})
    with pytest.raises(UserError, match=f"{words}.* leave engine argument enable_lora out"):
        served.check(found, SERVE)


def test_what_is_no_adapter_or_is_told_twice_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="base is no adapter: leave engine argument enable_lora"):
        served.check(checkpoints.inspect(base), SERVE)
    adapted(base, tmp_path / "adapter")
    found = checkpoints.inspect(tmp_path / "adapter")
    served.check(found, SERVE)
    with pytest.raises(UserError, match="max_lora_rank cannot be given with enable_lora"):
        served.check(found, SERVE | {"max_lora_rank": 64})
    with pytest.raises(UserError, match="16 bits on GPUs: leave engine argument dtype out, or"):
        served.check(found, SERVE | {"dtype": "float32"})


def test_runs_of_two_adapters_share_their_base(base: Path, tmp_path: Path) -> None:
    runs = []
    for name in "ab":
        adapted(base, tmp_path / name, r=ord(name) - ord("a") + 1)
        runs.append(run_of(tmp_path / name, tmp_path / "memory", **SERVE))
    (tmp_path / "memory").mkdir()
    first, second = map(weights_of, runs)
    with second.hold():
        with first.hold():
            assert first.copy(lease.loaded(runs[0]))
            assert first.copy_seconds is not None
        # The first run has ended, and the second still holds them.
        assert second.ready(lease.loaded(runs[1]).identity)
        assert second.copy(lease.loaded(runs[1]))
        assert second.copy_seconds is None
        copied = (second.folder / "model.safetensors").read_bytes()
        assert copied == (base / "model.safetensors").read_bytes()
    assert not list((tmp_path / "memory").iterdir())
    assert runs[0].checkpoint.identity != runs[1].checkpoint.identity
    assert weights_name(run_of(tmp_path / "a", tmp_path)) == runs[0].id


@contextlib.contextmanager
def written(adapter: Path, memory: Path) -> Iterator[Path]:
    """The files of an adapter that vLLM gets, as long as the weights of its base are held."""
    memory.mkdir()
    run = run_of(adapter, memory, **SERVE)
    weights = weights_of(run)
    with weights.hold(), adapter_files(weights, lease.leased(run)) as made:
        yield made


@pytest.mark.parametrize("pickled", [False, True])
def test_vllm_gets_an_adapter_with_one_scale_in_safetensors(
    base: Path, tmp_path: Path, pickled: bool
) -> None:
    torch: Any = importlib.import_module("torch")
    folder = tmp_path / "adapter"
    adapted(base, folder, r=9, lora_alpha=6, use_rslora=True)
    given = files.load_file(folder / "adapter_model.safetensors")
    if pickled:
        torch.save(given, folder / "adapter_model.bin")
        (folder / "adapter_model.safetensors").unlink()
    with written(folder, tmp_path / "memory") as made:
        kept = files.load_file(made / "adapter_model.safetensors")
        config = json.loads((made / "adapter_config.json").read_text())
        told = arguments(made)
        assert {path.name for path in made.iterdir()} == {
            "adapter_model.safetensors",
            "adapter_config.json",
        }
    assert kept.keys() == given.keys()
    assert all(torch.equal(kept[name], given[name]) for name in given)
    assert config["lora_alpha"] / config["r"] == pytest.approx(6 / 9**0.5)  # of rsLoRA
    assert told["max_lora_rank"] == 16
    assert told["lora_target_modules"] == ["down_proj", "q_proj"]
    assert not list((tmp_path / "memory").iterdir())


def test_vllm_gets_several_scales_in_the_factors(base: Path, tmp_path: Path) -> None:
    torch: Any = importlib.import_module("torch")
    folder = tmp_path / "adapter"
    patterns = {"alpha_pattern": {"q_proj": 3}, "rank_pattern": {"down_proj": 9}}
    adapted(base, folder, r=4, lora_alpha=6, **patterns)
    given = files.load_file(folder / "adapter_model.safetensors")
    with written(folder, tmp_path / "memory") as made:
        kept = files.load_file(made / "adapter_model.safetensors")
        config = json.loads((made / "adapter_config.json").read_text())
    assert (config["lora_alpha"], config["r"]) == (9, 9)
    assert kept.keys() == given.keys()
    for name, tensor in given.items():
        scale = 1 if "lora_A" in name else 3 / 4 if "q_proj" in name else 6 / 9
        assert torch.equal(kept[name], tensor * scale)


def test_an_adapter_that_changed_or_is_not_finite_is_not_served(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    adapted(base, folder)
    (tmp_path / "memory").mkdir()
    run = run_of(folder, tmp_path / "memory", **SERVE)
    weights, weights_file = weights_of(run), folder / "adapter_model.safetensors"
    before = tmp_path / "before"
    shutil.copy2(weights_file, before)
    held = files.load_file(weights_file)
    name = next(iter(held))
    held[name][0, 0] = float("nan")
    files.save_file(held, weights_file, metadata={"format": "pt"})
    with weights.hold():
        with (
            pytest.raises(WeightsRefused, match="not finite"),
            adapter_files(weights, lease.leased(run)),
        ):
            pass
        shutil.copy(before, weights_file)
        with (
            pytest.raises(UserError, match="changed after it was submitted"),
            adapter_files(weights, lease.leased(run)),
        ):
            pass
