"""The small files of a checkpoint in a store, kept in this user's cache.

Tokenizers, builders and keepers read them often, and libraries read only local files. They lie in
`remote-<uid>/<digest of their content>/`, so a training's checkpoints share them.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, config_file, remote


def local(files: Sequence[Path], cache: Path) -> list[Path]:
    """Return files beside the weights as local files: those of a store as copies in a cache.

    A `params.json` becomes the `config.json` that it tells.

    Raises:
        UserError: As for `checkpoint_files.read`, or a store cannot be read.
        OSError: The cache cannot be written.
    """
    kept = {file: _content(file) for file in files if isinstance(file, remote.RemotePath)}
    if not kept:
        return list(files)
    digest = hashlib.sha256()
    for name, content in kept.values():
        digest.update(json.dumps([name, hashlib.sha256(content).hexdigest()]).encode())
    above = _files.own_folder(cache / f"remote-{os.geteuid()}")
    folder = above / digest.hexdigest()[:32]
    _files.make_closed(folder)
    for name, content in kept.values():
        if _files.size(folder / name) != len(content) or (folder / name).read_bytes() != content:
            _files.write(folder / name, content)
    return [folder / kept[file][0] if file in kept else file for file in files]


def _content(file: Path) -> tuple[str, bytes]:
    if file.name == config_file.PARAMS:
        return config_file.CONFIG, json.dumps(config_file.read(file), indent=2).encode()
    return file.name, checkpoint_files.read(file)
