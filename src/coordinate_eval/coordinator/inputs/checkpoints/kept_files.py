"""The small files of a checkpoint in a store, kept in this user's cache.

Tokenizers, builders and keepers read them often, and libraries read only local files. They lie in
`remote-<uid>/<digest of their content>/`, so a training's checkpoints share them.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, config_file, remote
from coordinate_eval.errors import ForeignError

USED_SECONDS: Final = 86_400.0
"""Time after its last use for which a copy stays: a call that begins may find it."""


def local(files: Sequence[Path], cache: Path) -> list[Path]:
    """Return files beside the weights as local files: those of a store as copies in a cache.

    A `params.json` becomes the `config.json` that it tells.

    Raises:
        UserError: As for `checkpoint_files.read`, or a store cannot be read.
        OSError: The cache cannot be written.
    """
    stored = [file for file in files if isinstance(file, remote.RemotePath)]
    if not stored:
        return list(files)
    with ThreadPoolExecutor(remote.REQUESTS) as pool:
        kept = dict(zip(stored, pool.map(_content, stored), strict=True))
    digest = hashlib.sha256()
    for name, content in kept.values():
        digest.update(json.dumps([name, hashlib.sha256(content).hexdigest()]).encode())
    above = _files.own_folder(_above(cache))
    folder = above / digest.hexdigest()[:32]
    _files.make_closed(folder)
    os.utime(folder)  # it is in use
    for name, content in kept.values():
        if _files.size(folder / name) != len(content) or (folder / name).read_bytes() != content:
            _files.write(folder / name, content)
    return [folder / kept[file][0] if file in kept else file for file in files]


def remove_unused(cache: Path, needed: Collection[str], seconds: float) -> None:
    """Remove copies of this user's that are not `needed`, and that no call has used for so long."""
    above = _above(cache)
    try:
        _owner.check_folder(above)
    except (OSError, ForeignError):
        return
    in_use = {Path(file).parent.name for file in needed if Path(file).is_relative_to(above)}
    for name in _files.names(above) - in_use:
        folder = above / name
        old = time.time() - _files.modified(folder) > max(seconds, USED_SECONDS)
        if re.fullmatch(r"[0-9a-f]{32}", name) and old:
            shutil.rmtree(folder, ignore_errors=True)


def _above(cache: Path) -> Path:
    return cache / f"remote-{os.geteuid()}"


def _content(file: Path) -> tuple[str, bytes]:
    if file.name == config_file.PARAMS:
        return config_file.CONFIG, json.dumps(config_file.read(file), indent=2).encode()
    return file.name, checkpoint_files.read(file)
