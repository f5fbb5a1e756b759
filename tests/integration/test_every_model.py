"""No valid checkpoint is refused, whatever its architecture; and the table of defaults is right."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.checkpoints import refused

from coordinate_eval import _text_config as text_configs
from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect

SCRIPT = Path(__file__).parents[2] / "scripts" / "every_model.py"

# Dense, with experts, with latent attention, hybrid, recurrent, of an encoder and a decoder, tied,
# with other names, and within other models. The script tries every type.
KINDS = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2",
    "gpt_neox", "opt", "bloom", "falcon", "mamba", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss",
    "olmo2", "qwen3_next", "recurrent_gemma", "bart", "llava", "qwen2_vl", "gemma3",
)  # fmt: skip


@pytest.fixture(scope="module")
def every_model() -> Iterator[ModuleType]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("every_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["every_model"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["every_model"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_transformers_saves_is_taken(
    every_model: ModuleType, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / kind
    every_model.make(kind, folder)
    (folder / "tokenizer.json").write_text('{"vocab": {}}')
    inspect(folder)
    assert text_config(every_model.of_files(folder)[0], folder).checks


def test_a_part_of_each_such_model_is_refused(every_model: ModuleType, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for kind in ("llama", "gpt2", "mixtral", "qwen2_vl"):
        folder = tmp_path / kind
        every_model.make(kind, folder)
        (folder / "tokenizer.json").write_text('{"vocab": {}}')
        file = folder / "model.safetensors"
        whole = load_file(file)
        kept = {n: t for n, t in whole.items() if ".2." not in n}
        save_file(kept, file)
        refused(folder, "does not fit", "num_hidden_layers is 3")


def test_defaults_are_those_of_the_classes(every_model: ModuleType) -> None:
    table = text_configs._table()
    described = every_model.described()
    for kind, row in described.items():
        assert table[kind].text == row["text"], kind
        numbers = {name: row[name] for name in every_model.NUMBERS if name in row}
        assert dict(table[kind].numbers) == numbers, kind
    assert table.keys() == described.keys()
