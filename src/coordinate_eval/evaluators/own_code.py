"""The code that a checkpoint names: never run, whatever asks for it.

A checkpoint may name Python beside its weights, or in a repository of a hub, as its tokenizer, its
config or its model. Libraries run it if they are told to trust it, and some harness tasks tell them
to. `refuse` makes every such attempt fail in this process. The copies of a checkpoint's files that
tasks and engines get do not name code at all (`coordinator/inputs/checkpoints/clean_files.py`).
Beside them lies a record of what they no longer name, so that a message can say what is missing.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from coordinate_eval import _format
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.around_import import around_import

RECORD: Final = "own_code.json"
"""The name of the record: a JSON object of the code that a checkpoint names for each of its parts,
such as `{"AutoTokenizer": "tokenization_x.XTokenizer"}`."""

_MOST_LISTED = 160  # characters: whoever writes a checkpoint can name any number of modules

_PLUGIN: Final = "install a plugin of vLLM that has its class, as docs/engines.md shows"
"""Advice about a model whose class no library has: the user installs its code."""

NOWHERE: Final = "/dev/null/code-of-checkpoints-is-not-run"
"""A folder that nobody can make. transformers copies code there before it runs it."""


class CheckpointCode(UserError, ValueError):
    """The refusal. It is a ValueError, too, because at these transformers goes on without the code
    where it can, as it does when it is told not to trust it.
    """


def named(folder: Path) -> dict[str, str]:
    """Return the code that the files in a folder name, by the part that it is for.

    It comes from the record in a folder of clean copies, else from the files themselves.
    """
    record = json_object(folder / RECORD)
    if record:
        return references(record)
    found: dict[str, str] = {}
    for name in ("config.json", "tokenizer_config.json"):
        found |= references(json_object(folder / name).get("auto_map"))
    return found


def note(folder: Path, error: BaseException) -> str:
    """Return the end of a message about a folder that cannot be loaded, if it names code."""
    listed = "" if isinstance(error, CheckpointCode) else _listed(folder)
    return f"; it names code of its own ({listed}), which is never run: {_PLUGIN}" if listed else ""


def references(auto_map: object) -> dict[str, str]:
    """Return the code in an `auto_map` by the part of the checkpoint that it is for."""
    # In its older form, the map of a tokenizer is the list of its two classes.
    parts = auto_map if isinstance(auto_map, dict) else {"AutoTokenizer": auto_map}
    code = {str(part): ", ".join(dict.fromkeys(texts(each))) for part, each in parts.items()}
    return {part: each for part, each in code.items() if each}


def texts(value: object) -> list[str]:
    """Return all strings in a JSON value, but the keys of objects."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in texts(each)] if isinstance(value, list) else []


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file holds no object."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def environment() -> Mapping[str, str]:
    """Return variables with which also child processes of an engine run no code of a checkpoint."""
    return {"HF_MODULES_CACHE": NOWHERE, "TRUST_REMOTE_CODE": "0"}


@functools.cache
def refuse() -> None:
    """Refuse, from now on in this process, all code that transformers loads for a checkpoint.

    Tokenizers, configs and models that transformers has itself go on loading, even if a caller
    trusts the checkpoint's code.
    """
    os.environ["TRUST_REMOTE_CODE"] = "0"  # transformers unpickles some vocabularies otherwise
    # vLLM imports a module of this name from wherever it lies. None is how Python spells "absent".
    sys.modules["transformers_modules"] = None  # type: ignore[assignment]
    around_import("transformers.dynamic_module_utils", _replacing)


@contextmanager
def _replacing() -> Iterator[None]:
    """Replace what fetches and runs code, in its module and where its functions are used.

    Raises:
        UserError: this version of transformers has other functions.
    """
    yield
    dynamic_module_utils = sys.modules["transformers.dynamic_module_utils"]
    for name, function in _REPLACES.items():
        real = getattr(dynamic_module_utils, name, None)
        if real is None:
            raise UserError(
                f"this version of transformers has no {name}, so it cannot be kept from running a "
                "checkpoint's code: install an earlier one, from 4.56 on"
            )
        # Modules that were imported before have the function under their own names.
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is real:
                setattr(module, name, function)


# In place of functions of transformers, with the names of their arguments.


def _resolve(
    trust_remote_code: object,
    model_name: object,
    has_local_code: bool,
    has_remote_code: bool,
    *_: object,
    **__: object,
) -> bool:
    """Decide as transformers does when it is told not to trust a checkpoint's code."""
    if has_remote_code and not has_local_code:
        _fail(model_name, _listed(Path(str(model_name))))
    return False


def _class_of(
    class_reference: object, pretrained_model_name_or_path: object, *_: object, **__: object
) -> NoReturn:
    _fail(pretrained_model_name_or_path, class_reference)


def _file_of(
    pretrained_model_name_or_path: object, module_file: object, *_: object, **__: object
) -> NoReturn:
    _fail(pretrained_model_name_or_path, module_file)


def _module_of(class_name: object, module_path: object, *_: object, **__: object) -> NoReturn:
    _fail(module_path, class_name)


_REPLACES: Final[Mapping[str, Callable[..., object]]] = {
    "resolve_trust_remote_code": _resolve,
    "get_class_from_dynamic_module": _class_of,
    "get_cached_module_file": _file_of,
    "get_class_in_module": _module_of,
}


def _fail(model: object, code: object) -> NoReturn:
    shown = f" ({code})" if code else ""
    raise CheckpointCode(
        f"{model} needs code of its own{shown}, which is never run: save it for a class that "
        f"transformers has, or {_PLUGIN}"
    )


def _listed(folder: Path) -> str:
    """Return the code that a folder names, for a message."""
    listed = _format.plain(", ".join(dict.fromkeys(named(folder).values())))
    return listed if len(listed) <= _MOST_LISTED else f"{listed[:_MOST_LISTED]}…"
