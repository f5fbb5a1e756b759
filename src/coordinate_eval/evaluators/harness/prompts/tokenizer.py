"""The tokenizer of a checkpoint, loaded without running the checkpoint's own code."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.around_import import around_import, hidden
from coordinate_eval.evaluators.pulse import is_panic

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_ADVICE = "Put the tokenizer's files beside the weights, or name their folder with --tokenizer"


def load_tokenizer(folder: Path) -> Any:  # noqa: ANN401  one of many classes of transformers
    """Load the tokenizer of a checkpoint without running the checkpoint's own code.

    Raises:
        UserError: there is none, or transformers does not know its class.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    own_code.refuse()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        words = f"{error}{own_code.note(folder, error)}"
        raise UserError(
            f"the tokenizer in {folder} cannot be loaded: {words}\n{_ADVICE}"
        ) from error
    code = own_code.named(folder).get("AutoTokenizer")
    if code and not _has_class(folder):
        raise UserError(
            f"the tokenizer in {folder} is code of its own ({code}), which is never run\n{_ADVICE}"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(
            f"the tokenizer in {folder} names the class {type(tokenizer).__name__}, which is no "
            f"tokenizer\n{_ADVICE}"
        )
    return tokenizer


def has_chat_template(tokenizer: Any) -> bool:  # noqa: ANN401  one of many classes
    """Return whether a tokenizer has a chat template: in a file, or in code as Mistral's.

    Of templates with names only that named `default` is for chats. An empty one is none.
    """
    from transformers import PreTrainedTokenizerBase

    of_all = PreTrainedTokenizerBase.apply_chat_template
    # Its calls may be watched: then its class has a function around that of its own.
    own = inspect.unwrap(type(tokenizer).apply_chat_template) is not inspect.unwrap(of_all)
    given = tokenizer.chat_template
    return own or bool(given.get("default") if isinstance(given, dict) else given)


def tokenizers_alone() -> None:
    """Have transformers load in this process as it does where there is no PyTorch.

    It has its tokenizers there, and no models, whose modules take four times as long to import.
    PyTorch itself can be imported afterwards.
    """
    around_import("transformers", _without_torch)


@contextmanager
def _without_torch() -> Iterator[None]:
    """Hide PyTorch, and the advice to install it."""
    advice = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        with hidden("torch"):
            yield
    finally:
        if advice is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = advice


def _has_class(folder: Path) -> bool:
    """Return whether transformers has a class for a tokenizer whose code is not run.

    Otherwise it would take a general one, which may cut texts into other tokens. The rule is that
    of its `AutoTokenizer.from_pretrained` for a checkpoint whose code is not trusted.
    """
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    name = str(own_code.json_object(folder / "tokenizer_config.json").get("tokenizer_class", ""))
    name = name.removesuffix("Fast")
    if name and (hasattr(transformers, name) or hasattr(transformers, f"{name}Fast")):
        return True
    kind = own_code.json_object(folder / "config.json").get("model_type")
    return isinstance(kind, str) and kind in TOKENIZER_MAPPING_NAMES
