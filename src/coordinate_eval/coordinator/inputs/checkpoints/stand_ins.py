"""Recognize what lies where a file should be: pointers to it, error pages, and nothing.

Copies go wrong quietly: a clone without Git LFS leaves small texts under the names of large files,
a download that is refused leaves the words of the refusal, a full disk leaves zeros.
"""

import re
from pathlib import Path
from typing import Final

from coordinate_eval import _format
from coordinate_eval.errors import UserError

HEAD_BYTES: Final = 1024
"""Bytes of a file that `check` looks at."""

_PULL = "In its repository run: git lfs pull"
_AGAIN = "Look at it, and download it again with your token, or copy it from where it is whole"
_REFUSED = "the words of a refused download"
_STAND_INS = (
    (rb"version https://(?:git-lfs|hawser)\.github\.com/spec/", "a Git LFS pointer", _PULL),
    (rb"# xet version ", "a pointer of XetHub", "In its repository run: git xet checkout"),
    (rb"/annex/objects/|\.git/annex/objects/", "a pointer of git-annex",
     "In its repository run: git annex get"),
    (rb"outs:\s*- (?:md5|etag|hash)", "a pointer of DVC", "In its repository run: dvc pull"),
    (rb"(?i)(?:<\?xml[^>]*>\s*)?<error>", "an error of a storage service", _AGAIN),
    (rb"(?i)(?:<!--.{0,200}?-->\s*)?(?:<!doctype html|<html)", "a web page", _AGAIN),
    (rb"(?:Entry not found|Repository not found|Invalid (?:username|credentials)|Access to model |"
     rb"Invalid rev|Unauthorized|Forbidden|Not Found|404: )", _REFUSED, _AGAIN),
    (rb'\{\s*"(?:error|message)"\s*:\s*"', _REFUSED, _AGAIN),
)  # fmt: skip
_SIZE = re.compile(rb"^(?:size|filesize =) (\d{1,18})$", re.MULTILINE)


def check(path: Path, head: bytes) -> None:
    """Check that a file, of which `head` are the first bytes, holds what it should.

    Raises:
        UserError: It holds a pointer to it, an error page, or zeros.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    for pattern, what, then in _STAND_INS:
        if re.match(pattern, text, re.DOTALL):
            size = _SIZE.search(text)
            of = f" to {_format.size(int(size[1]))}" if size else ""
            raise UserError(f"{path} is {what}{of}, not the file itself. {then}")
    if head and not head.strip(b"\0"):
        raise UserError(
            f"{path} begins with zeros: its content never reached the disk. Copy or save it again, "
            "and look whether the disk or a quota is full"
        )


def check_link(path: Path) -> None:
    """Check that a file is no link that leads nowhere.

    Raises:
        UserError: It is one.
    """
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        annex = ".git/annex/" in str(target)
        then = (
            "In its repository run: git annex get" if annex else "Copy it together with its target"
        )
        raise UserError(f"{path} is a link to {_format.brief(target)}, which is not there. {then}")
