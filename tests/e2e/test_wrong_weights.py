"""Checkpoints whose weights are not those of their model: no engine scores them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.tiny import need, tiny_model

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.base import Loading, by_name


@pytest.fixture
def model(tmp_path: Path) -> Path:
    need("transformers", "transformers")
    return Path(shutil.copytree(tiny_model(), tmp_path / "model"))


def refused(model: Path) -> str:
    """Return the words with which transformers does not start on a model."""
    with pytest.raises(EngineError) as found:
        by_name("transformers").start(Loading(model, 1, 64, {}))
    return str(found.value)


@pytest.mark.parametrize(
    ("layers", "words"),
    [(1, "are missing in its files"), (-1, "are not of the model in config.json")],
)
def test_a_config_of_other_layers_is_refused(model: Path, layers: int, words: str) -> None:
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] += layers
    (model / "config.json").write_text(json.dumps(config))
    said = refused(model)
    assert words in said
    assert "model.layers." in said


def test_weights_of_another_shape_are_refused(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["intermediate_size"] *= 2
    (model / "config.json").write_text(json.dumps(config))
    assert "mlp" in refused(model)


def test_weights_that_are_no_numbers_are_refused(model: Path) -> None:
    file = model / "model.safetensors"
    weights = load_file(file)
    norm = weights["model.norm.weight"]
    save_file(weights | {"model.norm.weight": np.full_like(norm, np.nan)}, file, {"format": "pt"})
    assert "are all weights finite?" in refused(model)


def test_weights_that_are_tied_need_not_be_there_twice(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    file = model / "model.safetensors"
    weights = load_file(file)
    weights.pop("lm_head.weight", None)
    # Some trainers save what no model has.
    unneeded = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, dtype=np.float32)}
    save_file(weights | unneeded, file, {"format": "pt"})
    by_name("transformers").start(Loading(model, 1, 64, {})).close()
