"""A tokenizer reads the same tokens from clean copies as from the checkpoint's own files."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_model

pytest.importorskip("transformers")

from coordinate_eval.coordinator.inputs.checkpoints import clean_files
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint_files import TOKENIZER_FILES, present
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer

WORDS = (
    "the cat sat on the mat",
    "Paris, 東京 and Köln",
    "<s>  one\n\ttwo</s>",
    "",
    "don't 🙂 12345",
)
NOISE = {
    "auto_map": {"AutoProcessor": "hostile.P", "AutoTokenizer": ["hostile.T", None]},
    "name_or_path": "/home/somebody/model",
    "tokenizer_file": "/home/somebody/.cache/tokenizer.json",
    "special_tokens_map_file": "../special_tokens_map.json",
    "custom_pipelines": {"text-generation": {"impl": "hostile.P"}},
}


def byte_pairs(folder: Path) -> str:
    for file in tiny_model().iterdir():
        if "token" in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    return "PreTrainedTokenizerFast"


def word_pieces(folder: Path) -> str:
    letters = [chr(code) for code in range(33, 127)] + ["東", "京", "ö"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", *letters]
    pieces += [f"##{letter}" for letter in letters]
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    return "BertTokenizer"


def merges(folder: Path) -> str:
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        text: number for number, text in enumerate([*letters, "<|endoftext|>", "th", "the"])
    }
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    return "GPT2Tokenizer"


def sentence_pieces(folder: Path) -> str:
    sentencepiece = pytest.importorskip("sentencepiece")
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(WORDS[:2]) * 50),
        model_writer=made,
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(made.getvalue())
    return "LlamaTokenizer"


@pytest.mark.parametrize("noise", [{}, NOISE], ids=["plain", "noise"])
@pytest.mark.parametrize("write", [byte_pairs, word_pieces, merges, sentence_pieces])
def test_same_tokens(write: Callable[[Path], str], noise: dict[str, Any], tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    (copies := tmp_path / "copies").mkdir()
    name = write(folder)
    config = folder / "tokenizer_config.json"
    old = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps(old | noise | {"tokenizer_class": name}))
    clean_files.copy(map(str, present(folder, TOKENIZER_FILES)), copies)

    own, copied = load_tokenizer(folder), load_tokenizer(copies)
    assert type(copied) is type(own)
    for text in WORDS:
        assert copied.encode(text) == own.encode(text)
        assert copied.decode(own.encode(text)) == own.decode(own.encode(text))
    assert copied.eos_token_id == own.eos_token_id


def test_a_class_that_is_missing_is_not_replaced(tmp_path: Path) -> None:
    """Another class might cut texts into other tokens, and give wrong scores without a word."""
    (copies := tmp_path / "copies").mkdir()
    byte_pairs(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    content = json.loads(config.read_text()) | {"tokenizer_class": "OwnTokenizer"}
    config.write_text(json.dumps(content | {"auto_map": {"AutoTokenizer": "own.OwnTokenizer"}}))
    clean_files.copy(map(str, present(tmp_path, TOKENIZER_FILES)), copies)
    with pytest.raises(UserError, match=r"code of its own \(own\.OwnTokenizer\)"):
        load_tokenizer(copies)
