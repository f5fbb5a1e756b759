"""`coordinate-eval checkpoint`: what any folder is, and whether its answers are the trainer's."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import trainers
from tests.tiny import tiny_model
from typer.testing import CliRunner

import coordinate_eval
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.inquire.checkpoint import examine

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with two groups of heads, and what it answers in `reference.json`."""

    folder: Path = tmp_path_factory.mktemp("models") / "plain"
    shutil.copytree(tiny_model(), folder)
    transformers: Any = importlib.import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 16
    torch.manual_seed(0)
    made: Any = transformers.AutoModelForCausalLM.from_config(config)
    made.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    coordinate_eval.reference(made, tokenizer, folder.parent / "reference.json")
    return folder


def saved(model: Path, folder: Path, trainer: str, change: Any = lambda state: None) -> Path:
    """The model by a trainer's names, in a folder with its config and tokenizer."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((model / "config.json").read_text())
    state = trainers.FORWARD[trainer](load_file(model / "model.safetensors"), config)
    change(state)
    torch.save(state, folder / "model.pt")
    return folder


def test_a_checkpoint_is_shown_with_the_names_of_its_trainer(model: Path, tmp_path: Path) -> None:
    folder = saved(model, tmp_path / "iter_0000500", "megatron")

    done = CliRunner().invoke(app, ["checkpoint", str(folder), "--json"])

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["schema"] == "coordinate-eval/checkpoint@1"
    assert (found["mapping"], found["step"], found["format"]) == ("Megatron-core", 500, "torch")
    assert (found["model_type"], found["usable"]) == ("llama", True)
    rows = {group["name"]: (group["count"], group["shape"]) for group in found["tensors"]}
    assert rows["decoder.layers.<n>.self_attention.linear_qkv.weight"] == (2, [128, 64])
    shown = CliRunner().invoke(app, ["checkpoint", str(folder)])
    assert "decoder.layers.<n>.mlp.linear_fc1.weight" in shown.output


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "litgpt"])
def test_answers_of_renamed_weights_are_those_of_the_trainer(
    model: Path, tmp_path: Path, trainer: str
) -> None:
    folder = saved(model, tmp_path / "step-1", trainer)

    report = examine(folder, check_against=model.parent / "reference.json")

    assert not report.why
    assert report.checked
    assert report.checked["compared"]["largest"] < 1e-5


def concatenated(state: dict[str, Any]) -> None:
    """Queries, then keys, then values, where Megatron has groups."""
    for name in [name for name in state if "linear_qkv.weight" in name]:
        group = state[name].reshape(2, 4, 16, 64)
        parts = (group[:, :2], group[:, 2], group[:, 3])
        state[name] = torch.cat([part.reshape(-1, 64) for part in parts])


def halves(state: dict[str, Any]) -> None:
    """Rotary halves, as Hugging Face has them, where torchtitan has pairs."""
    for name in [name for name in state if ".wq." in name or ".wk." in name]:
        heads = 4 if ".wq." in name else 2
        rows = state[name].reshape(heads, 8, 2, 64).transpose(1, 2)
        state[name] = rows.reshape(-1, 64).contiguous()


@pytest.mark.parametrize(
    ("trainer", "change"), [("megatron", concatenated), ("torchtitan", halves)]
)
def test_orders_that_only_answers_tell_are_caught(
    model: Path, tmp_path: Path, trainer: str, change: Any
) -> None:
    folder = saved(model, tmp_path / "step-1", trainer, change)
    assert not examine(folder, check=True).why  # shapes and names are right

    report = examine(folder, check_against=model.parent / "reference.json")

    assert "answers otherwise than the model that wrote" in report.why
    assert "has the log-likelihood" in report.why


def test_half_a_mapping_and_half_a_model_are_told_with_their_tensors(
    model: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("names: {tok_embeddings.weight: model.embed_tokens.weight}")
    folder = saved(model, tmp_path / "step-1", "torchtitan")
    report = examine(folder, mapping=own)
    assert "20 of 21 tensors fit none of its rules" in report.why
    assert len(report.left_over["checkpoint"]) == 20
    assert report.tensors

    def without_w3(state: dict[str, Any]) -> None:
        for name in [name for name in state if ".w3." in name]:
            del state[name]

    report = examine(saved(model, tmp_path / "step-2", "torchtitan", without_w3), check=True)
    assert "2 tensors of the model are missing: model.layers.0.mlp.up_proj.weight" in report.why
    assert report.left_over["model"] == [f"model.layers.{n}.mlp.up_proj.weight" for n in range(2)]


def test_an_own_mapping_is_kept_in_the_checkpoint(model: Path, tmp_path: Path) -> None:
    from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
    from coordinate_eval.coordinator.inputs.checkpoints import reading

    folder = tmp_path / "step-1"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    state = load_file(model / "model.safetensors")
    torch.save({f"ours/{name}": tensor for name, tensor in state.items()}, folder / "model.pt")
    own = tmp_path / "own.yaml"
    own.write_text(
        "trainer: ours\nnames:\n" + "".join(f"  ours/{name}: {name}\n" for name in state)
    )
    found = checkpoints.inspect(folder, mapping=own)
    own.unlink()
    read_again = type(found).model_validate_json(found.model_dump_json())
    assert reading.source(read_again).tensors.keys() == state.keys()
    assert checkpoints.unchanged(read_again)


@pytest.mark.parametrize("what", ["empty", "foreign", "unfinished", "torn", "nothing"])
def test_what_is_no_checkpoint_is_explained(model: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "step-1"
    if what != "nothing":
        folder.mkdir()
    if what == "foreign":
        (folder / "model.gguf").write_bytes(b"GGUF")
    if what == "unfinished":
        shutil.copy(model / "model.safetensors", folder)
    if what == "torn":
        shutil.copytree(model, folder, dirs_exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"\1\0\0")
    words = {
        "empty": "it holds nothing", "foreign": "GGUF", "unfinished": "has no config.json",
        "torn": "is not whole", "nothing": "does not exist",
    }  # fmt: skip

    done = CliRunner().invoke(app, ["checkpoint", str(folder), "--json"])

    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert words[what] in found["why"]
    assert bool(found["tensors"]) == (what == "unfinished")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "x"}, "is not what coordinate_eval.reference writes"),
        ({"prompts": [{"text": "a", "ids": [5, 9999], "logprobs": [0.0]}]}, "token 9,999"),
        ({"prompts": [{"text": "the cat", "ids": [9, 9], "logprobs": [0.0]}]}, "other tokens"),
        ({"prompts": [{"text": "a", "ids": [5, 6], "logprobs": [float("nan")]}]}, "not finite"),
        ({"prompts": [{"text": "a", "ids": [5, 6], "logprobs": []}]}, "missing or not finite"),
    ],
)
def test_a_reference_of_another_model_is_refused(
    model: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    reference = json.loads((model.parent / "reference.json").read_text())
    file = tmp_path / "reference.json"
    file.write_text(json.dumps(reference | change))
    assert words in examine(model, check_against=file).why


def test_a_reference_that_is_missing_is_told_before_weights_are_read(
    model: Path, tmp_path: Path
) -> None:
    report = examine(model, check_against=tmp_path / "reference.json")
    assert "reference.json cannot be read: it does not exist" in report.why
    assert report.checked is None


def test_a_file_of_another_name_has_the_names_of_hugging_face(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "step-1")
    (folder / "model.safetensors").rename(folder / "model_ema.safetensors")
    report = examine(folder / "model_ema.safetensors")
    assert report.usable
    assert report.mapping is None


def test_averages_and_adapters_with_a_base_are_shown(model: Path, tmp_path: Path) -> None:
    average = tmp_path / "average.yaml"
    last = shutil.copytree(model, tmp_path / "step-7")
    average.write_text(f"average: [{model}, {last}]\n")
    found = examine(average)
    assert (found.format, found.step, found.usable, found.files) == ("average", 7, True, 2)
    assert found.config == str(last / "config.json")
    assert found.tokenizer
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {"A": (2, 64), "B": (64, 2)}
    tensors = {f"{name}.lora_{each}.weight": torch.zeros(shapes[each]) for each in shapes}
    save_file(tensors, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "layers_to_transform": [0]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert "--base" in examine(adapter).why
    done = CliRunner().invoke(app, ["checkpoint", str(adapter), "--base", str(model), "--json"])
    assert done.exit_code == 0, done.output
