"""Adapters: described, with their base, and merged while they are staged."""

import importlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mixes import Held, adapted, staged, tensors, written_adapter
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import guard, reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.mixed.adapter import AdapterConfig
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import members
from coordinate_eval.coordinator.inputs.checkpoints.mixed.merged import Merged
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat

torch: Any = importlib.import_module("torch")
files: Any = importlib.import_module("safetensors.torch")


def test_an_adapter_is_staged_as_what_peft_merges(adapter: Path, tmp_path: Path) -> None:
    found = inspect(adapter)
    copy = staged(Checkpoint.model_validate_json(found.model_dump_json()), tmp_path)

    expected = tensors(adapter.with_name("adapter-merged"))
    mine = tensors(copy)
    assert mine.keys() == expected.keys()
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    assert found.format is CheckpointFormat.ADAPTER
    assert found.parameters == inspect(adapter.with_name("adapter-merged")).parameters
    assert not (copy / "adapter_config.json").exists()
    assert (copy / "tokenizer.json").exists()


def test_the_base_is_found_where_the_adapter_says_or_as_it_is_given(
    steps: list[Path], adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    config = json.loads((copy / "adapter_config.json").read_text())

    def named(base: str) -> Path:
        (copy / "adapter_config.json").write_text(
            json.dumps({**config, "base_model_name_or_path": base})
        )
        return copy

    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / "abc"
    shutil.copytree(steps[0], snapshot)
    reference = snapshot.parent.parent / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    assert inspect(named("org/tiny")).parts[0].path == str(snapshot)
    assert inspect(named(os.path.relpath(steps[0], copy))).parts[0].path == str(steps[0])
    assert inspect(named("org/other"), base=steps[0]).parts[0].path == str(steps[0])
    with pytest.raises(UserError, match=r"org/other.*--base PATH"):
        inspect(named("org/other"))
    with pytest.raises(UserError, match="names no base"):
        inspect(named(""))


def test_the_tokenizer_of_the_adapter_counts(adapter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    shutil.copy(tiny_model() / "tokenizer.json", copy)
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]

    assert str(copy / "tokenizer.json") in inspect(copy).files
    assert f"{base}/config.json" in inspect(copy).files


def test_an_adapter_is_that_of_another_base(adapter: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model(), other)
    config = json.loads((other / "config.json").read_text())
    transformers: Any = importlib.import_module("transformers")
    sizes = {**config, "intermediate_size": config["intermediate_size"] * 2}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(other)

    with pytest.raises(UserError, match=r"(?s)matrix of the shape .*down_proj.*--base"):
        inspect(adapter, base=other)


def test_a_head_that_a_trainer_saved_beside_is_no_model(adapter: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(adapter, adapter.parent / "with-head")
    torch.save({"v": torch.zeros(3)}, folder / "value_head.bin")
    torch.save({"v": torch.zeros(3)}, folder / "head.pt")
    assert inspect(folder).format is CheckpointFormat.ADAPTER


def test_an_adapter_that_is_being_written_is_not_whole(adapter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    (copy / "adapter_config.json").unlink()

    with pytest.raises(UserError, match="not whole"):
        inspect(copy)


def test_an_adapter_with_more_tokens_is_judged_by_the_vocabulary_that_it_has(
    steps: list[Path], tmp_path: Path
) -> None:
    whole = tensors(steps[0])
    grown = {
        f"base_model.model.{name}": torch.cat([tensor, tensor[:6]])
        for name, tensor in whole.items()
        if name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    found = inspect(written_adapter(tmp_path / "grown", steps[0], grown))
    verdict = guard.judge(found, reading.source(found))
    assert verdict.differences is not None
    assert not verdict.why


def test_an_adapter_of_some_layers_of_a_deeper_base_is_refused(
    steps: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    adapted(steps[0], folder, target_modules=["q_proj", "down_proj"])
    state = files.load_file(folder / "adapter_model.safetensors")
    first = {name: tensor for name, tensor in state.items() if ".layers.0." in name}
    files.save_file(first, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"does not adapt model\.layers\.1\..*as it does in other"):
        inspect(folder)

    # a layer that predicts further tokens is in files, and not in the model
    source = Held(tensors(steps[0]))
    own = AdapterConfig(folder / "adapter_config.json")
    Merged(source, Held(first), own, tied=False, where="base", layers=1)
    with pytest.raises(UserError, match="does not adapt"):
        Merged(source, Held(first), own, tied=False, where="base", layers=2)

    config = json.loads((folder / "adapter_config.json").read_text())
    chosen = config | {"layers_to_transform": [0]}
    (folder / "adapter_config.json").write_text(json.dumps(chosen))
    inspect(folder)
    files.save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="has no tensors"):
        inspect(folder)


def test_a_base_of_what_is_no_adapter_is_refused(steps: list[Path], adapter: Path) -> None:
    for what in (steps[1], members(steps[1:], None)):
        with pytest.raises(UserError, match="is no adapter, and --base"):
            inspect(what, base=steps[0])
    inspect(members([adapter, steps[0]], None), base=steps[0])


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace(".layers.0.", ".layers.0._fsdp_wrapped_module."),
        lambda name: re.sub(r"(lora_[AB])|(lm_head)", r"\1\2.policy", name).replace(
            "lm_head.", "lm_head.modules_to_save."
        ),
    ],
)
def test_names_of_an_adapter_may_have_those_of_wrappers_and_its_own(
    adapter: Path, tmp_path: Path, wrapped: Callable[[str], str]
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    state = files.load_file(copy / "adapter_model.safetensors")
    files.save_file({wrapped(n): t for n, t in state.items()}, copy / "adapter_model.safetensors")

    expected = tensors(adapter.with_name("adapter-merged"))
    merged = reading.source(inspect(copy))
    assert merged.tensors.keys() == expected.keys()
    assert all(torch.equal(merged.read(name), expected[name]) for name in expected)


def test_an_adapter_counts_before_what_accelerate_saves_of_fsdp(
    adapter: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    torch.save(files.load_file(copy / "adapter_model.safetensors"), copy / "pytorch_model_fsdp.bin")
    assert inspect(copy).format is CheckpointFormat.ADAPTER
    (copy / "pytorch_model_fsdp.bin").rename(copy / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no config\.json"):  # it may be a whole model
        inspect(copy)


@pytest.mark.parametrize("shape", [(0,), (16,)])
def test_an_adapter_whose_parts_zero_did_not_gather_is_refused(
    adapter: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    state = files.load_file(copy / "adapter_model.safetensors")
    files.save_file(
        {name: torch.zeros(shape) for name in state}, copy / "adapter_model.safetensors"
    )
    with pytest.raises(UserError, match=r"of the shape \[\d+\]: ZeRO 3 and FSDP.*not gathered"):
        inspect(copy)


def test_two_adapters_in_one_file_are_refused(steps: list[Path], tmp_path: Path) -> None:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    held = {
        f"{module}.lora_{side}.{name}.weight": torch.zeros(2, 2)
        for side in "AB"
        for name in ("default", "ref")
    }
    with pytest.raises(UserError, match="has several adapters"):
        inspect(written_adapter(tmp_path / "both", steps[0], held))


def test_the_base_of_adapters_is_told_only_if_it_is_that_of_all(
    steps: list[Path], tmp_path: Path
) -> None:
    held = {"base_model.model.model.norm.weight": tensors(steps[0])["model.norm.weight"]}
    one, two, three = (
        written_adapter(tmp_path / str(number), steps[number // 2], held) for number in range(3)
    )
    assert checkpoints.base_of(inspect(members([one, two], None))) == steps[0]
    assert checkpoints.base_of(inspect(members([one, three], None))) is None
