"""Files of published benchmarks: local ones, or from where they are published, kept in a cache.

A file that is fetched has a sha256, so that it is what this program was tested with. It is kept in
the cache of the library `datasets`, which compute nodes and confined processes see.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from coordinate_eval import _files, _owner
from coordinate_eval.errors import ForeignError

SECONDS = 60.0
"""Longest wait for a server."""

MOST_SECONDS = 600.0
"""Longest time in which a server sends a file."""

MOST_BYTES = 64 << 20
"""Largest file that is taken: many times the published ones."""

FOLDER = "coordinate-eval"
"""In the library's cache."""


def read_text(source: str) -> str:
    """Return the text of a local file, or of `URL#sha256=…` from the cache or the network.

    Raises:
        ConnectionError: there is no network, and the file is not in the cache.
        ValueError: the file is not the published one, or is no UTF-8 text.
    """
    url, _, digest = source.partition("#sha256=")
    content = _published(url, digest) if digest else Path(source).expanduser().read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{url}: byte {error.start} is not UTF-8") from error


def read_lines(source: str, *needed: str) -> list[dict[str, Any]]:
    """Return the JSON objects in the lines of a file, each with the fields that are needed.

    Raises as `read_text` does, and:
        ValueError: a line is no JSON object, or lacks a field.
    """
    found = []
    for number, line in enumerate(read_text(source).split("\n"), 1):
        if line.strip():
            where = f"{source.partition('#')[0]}, line {number}"
            try:
                entry = from_json(line)  # no halves of characters, and no endless depth
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            has = entry if isinstance(entry, dict) else {}
            if lacking := [name for name in needed if name not in has]:
                raise ValueError(f"{where}: it has no {' and no '.join(lacking)}")
            found.append(entry)
    return found


def chosen(published: Mapping[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the files of a benchmark: those that the user gives, and the published ones.

    Raises:
        ValueError: the user names a file that the benchmark does not have.
    """
    unknown = (given or {}).keys() - published.keys()
    if unknown:
        raise ValueError(
            f"data_files: unknown {', '.join(sorted(unknown))}; known: {', '.join(published)}"
        )
    return {**published, **(given or {})}


def _published(url: str, digest: str) -> bytes:
    import datasets

    cached = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER / f"{digest[:16]}-{Path(url).name}"
    # Others may write to this cache: what they put there is no pipe to wait for, and has an end.
    with contextlib.suppress(OSError, ForeignError):
        with os.fdopen(_owner.open_file(cached, anybodys=True), "rb") as file:
            content = file.read(MOST_BYTES)
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    content = _fetched(url)
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{url} is not the file that was published: its sha256 is not {digest}")
    with contextlib.suppress(OSError):  # it is fetched again where the cache cannot be written
        _files.write(cached, content.decode())
    return content


def _fetched(url: str) -> bytes:
    import httpx

    if any(os.environ.get(name) == "1" for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")):
        raise ConnectionError(f"{url} is not in the cache, and the environment says offline")
    content = bytearray()
    until = time.monotonic() + MOST_SECONDS
    plain = {"Accept-Encoding": "identity"}  # few compressed bytes may stand for gigabytes
    try:
        with httpx.stream(
            "GET", url, headers=plain, follow_redirects=True, timeout=SECONDS
        ) as answer:
            answer.raise_for_status()
            for piece in answer.iter_raw():
                content += piece
                if len(content) > MOST_BYTES or time.monotonic() > until:
                    raise ConnectionError(
                        f"{url} cannot be fetched: it is larger than {MOST_BYTES >> 20} MiB, or "
                        f"takes more than {MOST_SECONDS:g} s"
                    )
    except httpx.HTTPError as error:
        raise ConnectionError(f"{url} cannot be fetched: {error}") from error
    return bytes(content)
