"""Small inputs that take hours or gigabytes to follow, or cannot be printed, are refused."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file
from tests import rank_checkpoints
from tests.checkpoints import refused, sides

from coordinate_eval.coordinator.inputs.checkpoints.formats import megatron
from coordinate_eval.coordinator.inputs.checkpoints.mixed import adapter, average
from coordinate_eval.coordinator.inputs.checkpoints.names import mapping
from coordinate_eval.coordinator.inputs.yaml_file import Source
from coordinate_eval.errors import UserError

torch = pytest.importorskip("torch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The config and the tokenizer of a checkpoint."""
    return sides(tmp_path / "step-10")


def test_a_dict_that_is_in_itself_or_often_in_others(folder: Path) -> None:
    inner = {"x": torch.zeros(1)}
    for _ in range(4):
        inner = dict.fromkeys(map(str, range(500)), inner)
    torch.save({"model": inner}, folder / "model.pt")
    refused(folder, "model.pt", "holds more than tensors")
    itself: dict[str, object] = {}
    itself |= dict.fromkeys(map(str, range(500)), itself)
    torch.save(itself, folder / "model.pt")
    refused(folder, "model.pt", "holds more than tensors")


def test_names_of_tensors(folder: Path) -> None:
    long = ".router." * 10_000 + "\n"
    torch.save({long: torch.zeros(1)}, folder / "model.pt")
    refused(folder, "a name of 80,001 characters")
    torch.save({"\ud800": torch.zeros(1)}, folder / "model.pt")
    refused(folder, "model.pt", "is no text")
    (folder / "model.pt").unlink()
    save_file({long: numpy.zeros(1)}, folder / "model.safetensors")
    refused(folder, "a name of 80,001 characters")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "U8", "shape": [1] * 100_000}, "100,000 dimensions"),
        ({"dtype": "F4", "shape": [2, 1]}, "numbers of type f4"),
        ({"dtype": "C64", "shape": [0]}, "numbers of type c64"),
    ],
)
def test_shapes_and_types_of_safetensors(
    folder: Path, entry: dict[str, object], words: str
) -> None:
    end = 0 if entry["shape"] == [0] else 1
    header = json.dumps({"x": entry | {"data_offsets": [0, end]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(end)
    (folder / "ema.safetensors").write_bytes(content)
    refused(folder, words)


@pytest.mark.parametrize(
    "shapes", [[{"a": (1,) * 100}], [{str(n): (1,) for n in range(99)}] * 11_000]
)
def test_shapes_of_deepspeed(folder: Path, shapes: Any) -> None:
    step = rank_checkpoints.deepspeed(folder, {"a": torch.ones(4)}, stage=2, ranks=1)
    (file,) = step.glob("*model_states.pt")
    torch.save(torch.load(file, weights_only=True) | {"param_shapes": shapes}, file)
    refused(folder, "model_states.pt is")


def test_arguments_of_megatron_that_nobody_prints_do_not_count(folder: Path) -> None:
    name = "decoder.layers.0.input_layernorm.weight"
    made = rank_checkpoints.megatron(folder, {name: torch.ones(4)})
    (file,) = made.glob("**/model_optim_rng.pt")
    content = torch.load(file, weights_only=False)
    nested: tuple[object, ...] = ()
    for _ in range(60):
        nested = (nested, nested)
    arguments = {"num_experts": 1, "expert_tensor_parallel_size": nested, "num_layers": 10**5000}
    vars(content["args"]).update(arguments)
    torch.save(content | {"iteration": -(10**5000)}, file)
    assert list(megatron.open_source([file], []).tensors) == [name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("config: x\n? [a, [b]]\n: y\n", "line 2: a key must be a text or a number"),
        ("a: &a !!set {x}\nb: !!set\n  <<: [*a, *a]\n", "line 2: << takes mappings"),
        ("config: !!int ''\n", "not YAML"),
        ("config: !!bool x\n", "not YAML"),
        (f"config: 1{':1' * 300}.5\n", "not YAML"),
        ("mapping: pipe\n", "pipe cannot be read: it is a pipe or device"),
    ],
)
def test_files_of_folders(folder: Path, text: str, words: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "coordinate-eval.yaml").write_text(text)
    torch.save({"x": torch.zeros(1)}, folder / "model.pt")
    refused(folder, words)


@pytest.mark.parametrize("weight", ["1.0e+39", "1.0e-40"])
def test_weights_of_averages(tmp_path: Path, weight: str) -> None:
    file = tmp_path / "soup.yaml"
    file.write_text(f"average: [a, b]\nweights: [{weight}, {weight}]\n")
    with pytest.raises(UserError, match=r"soup\.yaml: the weights .* no sum"):
        average.read_file(file)


@pytest.mark.parametrize(
    "rule",
    [
        "a.<n>.<m>.<o>.<p>: b",
        "'a<b|c|d><bc|cb|b><cc|c|d><dd|d|c><b|bb|c><c|cc|b><d|b>': b",
        f"a: {{to: b, into: 0x{'f' * 4000}}}",
    ],
)
def test_patterns_and_numbers_of_mappings(rule: str) -> None:
    text = f"names:\n  {rule}\n"
    with pytest.raises(UserError, match=r"too many numbers, words or letters|so many digits"):
        mapping.parse(Source(text, "own.yaml", Path(), "own.yaml", "mapping"), "own")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_alpha", 10**400),
        ("alpha_pattern", {"(.|..)" * 40: 1}),
        ("alpha_pattern", {"[z-a]": 1}),
    ],
)
def test_configs_of_adapters(tmp_path: Path, key: str, value: object) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": "LORA", key: value}))
    with pytest.raises(UserError, match=key):
        adapter.AdapterConfig(file)


def test_the_window_of_params_json(folder: Path) -> None:
    save_file({"tok_embeddings.weight": numpy.zeros((4, 8))}, folder / "consolidated.safetensors")
    params = {"dim": 8, "n_layers": 1, "n_heads": 1, "norm_eps": 1e-5, "hidden_dim": 8}
    (folder / "params.json").write_text(json.dumps(params | {"sliding_window": "9" * 5000}))
    (folder / "config.json").unlink()
    refused(folder, "params.json tells no config for sure: its layers have different sliding")
