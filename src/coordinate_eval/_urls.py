"""URLs of objects in stores, such as `s3://bucket/run/step-1000`, as users and files give them."""

import re
from typing import Final

from coordinate_eval.errors import UserError

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL | re.IGNORECASE)
"""A URL, of which a path has one slash of the two."""

_CHAINED = re.compile(r"[a-z0-9+.-]+::.*:/", re.DOTALL | re.IGNORECASE)
"""URLs of fsspec that say how another one is read, such as `simplecache::s3://bucket/run`."""

_SECRET = re.compile(r"^[^/@]*:(?!\d+/)[^@]*@|\?[^/]*=")  # keys of AWS have slashes; a port is none
_MASKED = re.compile(r"(?<=://)(?:[^/@\s:]*:(?!\d+/)[^@\s]*|[^/@\s]*)@|\?[^\s'\"]*")

CHAIN: Final = "::"
"""Behind it, fsspec takes a URL of another protocol, such as `dir://::file:///home`."""

_NO_FOLDERS: Final = {"http", "https", "file", "local", "memory", "data", "ftp"}
"""Protocols whose files cannot be listed with their sizes from every node, or are local."""


def of_store(text: str) -> str | None:
    """Return the URL that a text is, in one form; None if it is a path of a file system.

    Raises:
        UserError: It is a URL with credentials, of a protocol that has no folders, or of several.
    """
    if (found := _URL.fullmatch(text)) is None and not _CHAINED.match(text):
        return None
    scheme, place = found.groups() if found else ("", text)
    scheme = scheme.lower()
    shown = masked(f"{scheme}://{place}" if found else re.sub(r"(?<!:):/+", "://", text))
    if _SECRET.search(place):
        raise UserError(
            f"{shown}: the URL has a password or a query, which would be written into records and "
            "logs. Give it without, and the credentials in the environment or in the "
            "configuration of the store's own tools"
        )
    if scheme in _NO_FOLDERS or CHAIN in place:
        raise UserError(
            f"{shown} is not in an object store whose folders can be listed. Copy the checkpoint "
            "where login and compute nodes see it, and give that path"
        )
    return f"{scheme}://{place.strip('/')}"


def masked(text: str) -> str:
    """Return a text without the user names, passwords and queries of the URLs in it."""
    return _MASKED.sub("…", text)
