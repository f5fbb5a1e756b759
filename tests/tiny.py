"""A tiny language model with a trained tokenizer, made on the spot and the same everywhere.

`tiny_model()` returns a folder that every engine can load. It is made once per user and version
of this file, in about a second after importing transformers, and shared by all tests.
"""
# Torch and transformers have no types here: they may be absent while types are checked.

import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from coordinate_eval.coordinator.inputs.checkpoints import guard

MAX_LENGTH = 1024
"""Tokens of context of the model, prompt and output together."""

VOCABULARY = 384
"""Tokens: three special ones, 256 bytes, and merges learned from a few sentences."""

_CORPUS = (
    "the cat sat on the mat and the dog sat on the log",
    "one two three four five six seven eight nine ten eleven twelve",
    "a language model is scored on many benchmarks while it is trained",
    "question: what is the capital of France? answer: Paris",
    "def add(a, b):\n    return a + b\n",
    "Grüße aus Köln, naïve café, 東京, привет, 🙂🙃",
)


def tiny_model() -> Path:
    """The folder of a Llama of 120,000 random float32 weights and its byte-level tokenizer.

    Its texts are gibberish in which special tokens, line ends and torn UTF-8 do occur.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    root = shared_folder()
    made = root / f"tiny-{digest}"
    if not made.exists():
        work = Path(tempfile.mkdtemp(prefix="making-", dir=root))
        try:
            _tokenizer().save_pretrained(work)
            _model().save_pretrained(work)
            work.rename(made)
        except OSError:
            if not made.exists():  # otherwise another process was quicker
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return made


def architectures() -> Path:
    """A folder with what a user's cache has once the tiny model has been compared: see `guard`."""
    cache = tiny_model().with_name(f"{tiny_model().name}-cache")
    guard.architecture(json.loads((tiny_model() / "config.json").read_text()), cache)
    (made,) = cache.glob("architectures-*")
    return made


def sharded(folder: Path) -> Path:
    """Cut the weights of a checkpoint into a file a layer, and one for the rest; the folder."""
    numpy: Any = importlib.import_module("safetensors.numpy")
    single = folder / "model.safetensors"
    files: dict[str, dict[str, Any]] = {}
    for name, tensor in numpy.load_file(single).items():
        words = name.split(".")
        place = f"layer{words[2]}" if words[:2] == ["model", "layers"] else "rest"
        files.setdefault(f"{place}.safetensors", {})[name] = tensor
    for file, tensors in files.items():
        numpy.save_file(tensors, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    single.unlink()
    return folder


def shared_folder() -> Path:
    """Return this user's folder of what tests make once and share. It may be removed at any time.

    Raises:
        PermissionError: it belongs to another user.
    """
    root = Path(tempfile.gettempdir()) / f"coordinate-eval-tests-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to another user: remove it or set TMPDIR")
    return root


def need(module: str, extra: str) -> None:
    """Skip a test whose engine is not installed; in CI, where that would hide a failure, fail."""
    import pytest

    if importlib.util.find_spec(module) is None:
        message = f"needs {module}: pip install 'coordinate-eval[{extra}]'"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def tokenizer(folder: Path) -> Any:
    """The tokenizer in the folder, ready to `encode` and `decode`."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    transformers: Any = importlib.import_module("transformers")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<|turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS * 4, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    )


def _model() -> Any:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 dimensions, the fewest that vLLM's CPU kernels take
        num_key_value_heads=1,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.3,  # wide enough that its texts don't repeat one token
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return transformers.LlamaForCausalLM(config).to(torch.float32)
