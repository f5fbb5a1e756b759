"""The files of a checkpoint, opened and copied without trusting whoever wrote its folder.

Whoever can write a folder can put links, pipes and devices into it, and links are followed with
the rights of whoever evaluates. A name therefore counts only if engines and tokenizers look for
it, and its file only if it is a regular one that lies in the folder, or that everybody who can
read the folder by its group or as anybody else can read as well.

Copies go wrong quietly: a clone without Git LFS leaves small texts under the names of large files,
a refused download leaves the words of the refusal, and a full disk leaves zeros. These are
recognized by the first bytes.
"""

import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final

from coordinate_eval import _format, _owner
from coordinate_eval.coordinator.inputs.checkpoints import remote
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


def check_head(path: Path, head: bytes) -> None:
    """Check by the first bytes of a file, `head`, that it holds what its name says.

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


TOKENIZERS: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "tokenizer.model.v1",
    "tokenizer.model.v2",
    "tokenizer.model.v3",
    "tokenizer.model.v7",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
)
"""Files of which one is enough for a tokenizer: the `VOCAB_FILES_NAMES` of transformers' language
models, and what vLLM asks a hub for with `tokenizer_mode="mistral"`."""

TOKENIZER_FILES: Final = (
    *TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
)
"""Every file that a tokenizer reads."""

MOST_SIDE_BYTES: Final = 128 << 20
"""Largest of the files beside the weights, in bytes: three times the largest tokenizer.json that is
common, of 262,144 tokens."""

MOST_SIDE_BYTES_IN_ALL: Final = 256 << 20
"""Bytes of all files beside the weights. They are copied into the run directory and to nodes."""

_CHUNK_BYTES = 1 << 20
_MOST_SHARED = 256  # files that are open at once: a process may have 1,024

Opened = FileIO | remote.RemoteFile
"""An open file of a checkpoint: its bytes are read at offsets, wherever it lies."""


def present(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return which of these files a folder has. A link that leads nowhere does not count."""
    return [folder / name for name in names if (folder / name).exists()]


@contextmanager
def opened(path: Path, *, weights: bool = False) -> Iterator[Opened]:
    """Open a file of a checkpoint for reading, unbuffered. Its folder is the checkpoint's.

    What is checked is the open file, so that nothing can be put in its place. Of `weights` nothing
    is shown to anybody, so links of this user may lead to private weights of this user.

    Raises:
        UserError: It is a pipe, a device or a folder, or leads out of its folder to a file that
            not everybody who can read the folder can read.
        OSError: It cannot be opened.
    """
    if isinstance(path, remote.RemotePath):
        yield remote.opened(path, weights=weights)
    elif weights and _shared and (file := _shared[-1].file(path)):
        yield file
    else:
        with _opened(path, weights=weights) as file:
            yield file


@contextmanager
def sharing_weights() -> Iterator[None]:
    """Open files of weights once for all threads, which read at offsets, until the block ends.

    To open a file and check where it lies takes as long as to read 300 kB of it, and there are
    checkpoints of 64 ranks whose parts are no larger.
    """
    with ExitStack() as stack:
        _shared.append(_Shared(stack))
        stack.callback(_shared.pop)
        yield


class _Shared:
    """Files that threads have open together, until a stack is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._lock = stack, threading.Lock()
        self._files: dict[Path, FileIO] = {}

    def file(self, path: Path) -> FileIO | None:
        """Return a file, opened once; None if too many are open."""
        with self._lock:
            if path not in self._files and len(self._files) < _MOST_SHARED:
                self._files[path] = self._stack.enter_context(_opened(path, weights=True))
            return self._files.get(path)


_shared: list[_Shared] = []


@contextmanager
def _opened(path: Path, *, weights: bool) -> Iterator[FileIO]:
    _check_regular(path, path.stat())  # opening a device may already do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with FileIO(descriptor) as file:
        _check_regular(path, os.fstat(descriptor))
        os.set_blocking(descriptor, True)
        _check_place(path, descriptor, weights=weights)
        yield file


@contextmanager
def open_path(file: Opened, length: int) -> Iterator[str]:
    """Yield a path of a copy of an open file, for libraries that map files into memory.

    Only the first `length` bytes are there. To read mapped bytes of a file that was cut short
    meanwhile would end the process (SIGBUS).
    """
    with FileIO(os.memfd_create("head"), "r+") as head:
        head.truncate(size(file))
        head.write(pread(file, length, 0))
        yield f"/proc/self/fd/{head.fileno()}"


def size(file: Opened) -> int:
    """Return the bytes of an open file."""
    return os.fstat(file.fileno()).st_size if isinstance(file, FileIO) else file.size


def pread(file: Opened, count: int, at: int) -> bytes:
    """Return bytes of an open file from `at` on."""
    return os.pread(file.fileno(), count, at) if isinstance(file, FileIO) else file.pread(count, at)


def read(path: Path, most: int = MOST_SIDE_BYTES) -> bytes:
    """Return the content of a file beside the weights.

    Raises:
        UserError: As for `opened`, it has more than `most` bytes, or something else stands in its
            place.
        OSError: It cannot be read.
    """
    with opened(path) as file:
        content = _content(path, file, most)
    check_head(path, content[:HEAD_BYTES])
    return content


def read_json(file: Path, most: int) -> dict[str, Any]:
    """Return the JSON object in a file beside the weights.

    Raises:
        UserError: As for `read`, or it holds no JSON object.
        OSError: It cannot be read.
    """
    content = read(file, most)
    if not content:
        raise UserError(f"{file} is empty. If it is being written, try again afterwards")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # malformed JSON, or no UTF-8
        raise UserError(
            f"{file} is not JSON: {_format.brief(error)}. If it is being written, try again "
            "afterwards"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value


def copy(path: Path, target: Path, change: Callable[[bytes], bytes]) -> None:
    """Copy a file beside the weights to a new file that nobody can read who cannot read the first.

    What is written is `change` of its content.

    Raises:
        UserError: As for `read`.
        OSError: It cannot be read, or `target` is there or cannot be written.
    """
    with opened(path) as file:
        content, found = _content(path, file, MOST_SIDE_BYTES), os.fstat(file.fileno())
        mode = stat.S_IMODE(found.st_mode) & 0o666 | 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(target, flags, mode), "wb") as writer:
            made = os.fstat(writer.fileno())
            if made.st_gid != found.st_gid and not mode & stat.S_IROTH:
                os.fchmod(writer.fileno(), stat.S_IMODE(made.st_mode) & ~0o070)
            writer.write(change(content))


def pread_all(file: Opened, count: int, begins: Sequence[int]) -> list[bytes]:
    """Return bytes from each of these places on."""
    if isinstance(file, FileIO):
        return [os.pread(file.fileno(), count, at) for at in begins]
    return file.pread_all(count, begins)


def read_into(file: Opened, target: memoryview, at: int) -> int:
    """Read bytes of an open file from `at` on. Return how many there were."""
    if isinstance(file, FileIO):
        return os.preadv(file.fileno(), [target], at)
    found = file.pread(len(target), at)
    target[: len(found)] = found
    return len(found)


def version(path: Path, found: os.stat_result) -> int | str:
    """Return what tells whether a file was written again."""
    return path.version() if isinstance(path, remote.RemotePath) else found.st_mtime_ns


def _content(path: Path, file: Opened, most: int) -> bytes:
    check_size(path, size(file), most)
    content = bytearray()
    while part := file.read(_CHUNK_BYTES):
        content += part
        check_size(path, len(content), most)
    return bytes(content)


def check_size(path: Path, size: int, most: int) -> None:
    """Check that a file has at most `most` bytes.

    Raises:
        UserError: The file has more bytes.
    """
    if size > most:
        raise UserError(
            f"{path} has {_format.size(size)}, more than the {_format.size(most)} that such a "
            "file may have: it is damaged, or not what its name says"
        )


def _check_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or device"
        raise UserError(f"{path} is {kind}, not a regular file: remove it, or replace it")


def _check_place(path: Path, descriptor: int, *, weights: bool) -> None:
    """Check that an open file is one that its folder's author may show."""
    above = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder, owner = _place(above), os.fstat(above)
    finally:
        os.close(above)
    place, found = _place(descriptor), os.fstat(descriptor)
    if _belongs(place, folder):
        # Another name of the file may lie where its owner keeps it from others: a hard link.
        if found.st_nlink == 1 or found.st_uid == owner.st_uid:
            return
    elif weights and {path.lstat().st_uid, owner.st_uid, found.st_uid} == {os.getuid()}:
        return
    if _as_open(place, folder, owner.st_gid):
        return
    raise UserError(
        f"{path} leads to {place}, which is not open to everybody who can read {folder}: it may be "
        "somebody's secret, and is not read. If it belongs to the model, copy it into that folder, "
        "or name its own folder with --tokenizer or --config"
    )


def _place(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _belongs(place: Path, folder: Path) -> bool:
    """Return whether a file lies in a folder, or in the blobs of a snapshot of a hub's cache.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache: `snapshots/<revision>/<name>`
    is a link to `../../blobs/<hash>`.
    """
    if folder.parent.name == "snapshots" and place.parent == folder.parent.parent / "blobs":
        return True
    return place.is_relative_to(folder)


def _as_open(place: Path, folder: Path, group: int) -> bool:
    """Return whether a file can be read by everybody, or by everybody in a group.

    Folders that are also above `folder` do not count: who is not let in there sees neither.
    """
    above = [each for each in place.parents if not folder.is_relative_to(each)]
    return _lets(place, group, stat.S_IROTH) and all(
        _lets(each, group, stat.S_IXOTH) for each in above
    )


def _lets(place: Path, group: int, right: int) -> bool:
    found = place.stat()
    if found.st_mode & right:
        return True
    # With an access list, the bits of the group are those of anybody named in the list.
    by_group = found.st_gid == group and bool(found.st_mode & right << 3)
    return by_group and not _owner.has_access_list(place)
