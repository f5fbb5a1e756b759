"""Copies of the files beside a checkpoint's weights that name no code and no other folder.

Tokenizers and engines read these copies, never the checkpoint's own folder. What is left out:

- names of code, which libraries import if they are told to trust it: `auto_map` and the like;
- repositories of kernels, which are programs, as the way to compute attention or experts;
- other models, that an engine would load in place of this one;
- paths out of the folder, for files of the tokenizer.

Whatever else is in them stays as it is. A file with nothing to leave out is copied byte for byte.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.checkpoints import (
    chat_template,
    checkpoint_files,
    config_file,
)
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code

_CONFIGS = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
)
# The other files are vocabularies, in which any text may be a token, and the list of the weights.

_CODE = ("auto_map", "custom_pipelines", "custom_generate")
# transformers' `PreTrainedConfig`, `pipeline` and `GenerationMixin.generate`.

_OTHER_MODELS = ("speculators_config", "transformers_weights", "base_model_name_or_path")
# vLLM's `maybe_override_with_speculators`, transformers' `from_pretrained`, and PEFT's adapters.

_MOST_CONFIG_BYTES = 16 << 20  # ten times the largest that are common; parsed, it is much larger


def copy(files: Iterable[str], folder: Path) -> None:
    """Copy the files beside a checkpoint's weights into an empty folder, without names of code.

    A chat template that only processors read is also copied to where tokenizers do. A params.json
    becomes the config.json that it tells.

    Raises:
        UserError: A file may not be read or is too large (see `checkpoint_files`), or a config is
            not JSON.
        OSError: A file cannot be read or written.
    """
    code: dict[str, str] = {}
    files = list(files)
    for file in map(Path, files):

        def change(content: bytes, file: Path = file) -> bytes:
            if file.name == config_file.PARAMS:
                return json.dumps(config_file.read(file), indent=2).encode()
            cleaned, named = clean(file, content)
            code.update(named)
            return cleaned

        name = config_file.CONFIG if file.name == config_file.PARAMS else file.name
        checkpoint_files.copy(file, folder / name, change)
    template = chat_template.find(files)
    if template.file == chat_template.OF_PROCESSOR:
        source = next(Path(file) for file in files if Path(file).name == template.file)
        target = folder / chat_template.IN_FILE
        checkpoint_files.copy(source, target, lambda _: template.text.encode())
    if code:
        (folder / own_code.RECORD).write_text(_files.pretty(code), encoding="utf-8")


def clean(file: Path, content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return what to copy of a file with this name and content, and the code that it named.

    Raises:
        UserError: It is a config, and not JSON or too large.
    """
    if file.name not in _CONFIGS:
        return content, {}
    checkpoint_files.check_size(file, len(content), _MOST_CONFIG_BYTES)
    code: dict[str, str] = {}
    try:
        value = json.loads(content)
        kept = _kept(value, code)
        if kept == value:
            return content, {}
        return json.dumps(kept, indent=2).encode(), code
    except (ValueError, RecursionError) as error:  # malformed JSON, or no UTF-8
        raise UserError(
            f"{file} is not JSON: {error}. If it is being written, try again afterwards"
        ) from error


def _kept(value: Any, code: dict[str, str]) -> Any:  # noqa: ANN401  any JSON value
    """Return a JSON value without what is left out, and add the names of code to `code`."""
    if isinstance(value, list):
        return [_kept(each, code) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, each in value.items():
        if key in _CODE:
            code.update(own_code.references(each if key == "auto_map" else {key: each}))
        elif not _leads_away(key, each):
            kept[key] = _kept(each, code)
    return kept


def _leads_away(key: str, value: object) -> bool:
    """Return whether an entry names another model, a repository, or a file elsewhere."""
    if key in _OTHER_MODELS:
        return True
    if key.endswith(("_file", "_files", "_implementation")):
        return any("/" in text for text in own_code.texts(value))
    return False
