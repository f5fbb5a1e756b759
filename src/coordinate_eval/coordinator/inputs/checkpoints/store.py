"""Requests to object stores through fsspec, with a limit of time, and words about what fails.

The packages of stores ask for minutes before they say that a store does not answer, or that nobody
gave them credentials, and some cannot be interrupted. So each request runs in a thread of its own,
which is left behind if it takes too long. People who call get the reason within seconds; jobs,
which hold nodes, ask again for some minutes.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, Final, TypeVar

from coordinate_eval import _in_image, _urls
from coordinate_eval._format import brief
from coordinate_eval.errors import StoreSilent, UserError

T = TypeVar("T")

_PACKAGES: Final = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hdfs": "pyarrow",
    "oci": "ocifs",
    "oss": "ossfs",
    "hf": "huggingface_hub",
}
"""The packages that give fsspec its protocols."""

_CREDENTIALS: Final = {
    "s3fs": "~/.aws/credentials, AWS_PROFILE",
    "gcsfs": "`gcloud auth application-default login`, GOOGLE_APPLICATION_CREDENTIALS",
    "adlfs": "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with a key",
}
"""The places in which packages look for credentials, besides `~/.config/fsspec`."""

_ANSWER_SECONDS: Final = 10.0
"""Most seconds for the answer to one question; to look for credentials is one."""

_LIST_SECONDS: Final = 30.0
"""Most seconds for all names in a folder."""

_LEAST_RATE: Final = 500_000
"""Bytes in a second that a store sends at least to each of the requests at once."""

_PAUSES: Final = (0.5, 2.0, 8.0, 30.0, 60.0)
"""Seconds before a job asks again, half as long or half as long again by chance: nodes that a busy
store has turned away come back one after another."""

_AGAIN_SECONDS: Final = 2.0
"""A request that fails sooner is repeated once for people, too."""

_stores: dict[str, Any] = {}
"""By bucket. Earlier versions of fsspec make one for each thread, with connections of its own."""

_failed: dict[str, UserError] = {}
"""Words about stores that do not answer, by bucket: nothing more is asked of them."""

_patient = False


class _Heard(logging.Handler):
    """The last warning of the packages: often the cause of what they ask for in vain until then."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the words of a warning; without this handler they would be printed."""
        if record.levelno >= logging.WARNING:
            self.last = record.getMessage()


_heard = _Heard()


def be_patient() -> None:
    """Ask stores that fail again for some minutes, as a job does."""
    global _patient
    _patient = True


def forget() -> None:
    """Forget what stores and their packages have told, and that a store did not answer."""
    _failed.clear()
    for store in _stores.values():
        store.invalidate_cache()


def packages(path: str) -> tuple[str, ...]:
    """Return the packages without which a URL cannot be read; none for a path of a file."""
    scheme, found, _ = path.partition("://")
    return ("fsspec", *filter(None, [_PACKAGES.get(scheme)])) if found else ()


def info(url: str) -> dict[str, Any]:
    """Return what a store tells of an object or folder.

    Raises:
        FileNotFoundError: There is none.
        UserError: The store cannot be read.
    """
    store, name = _store(url)
    told: dict[str, Any] = ask(url, lambda: store.info(name), _ANSWER_SECONDS)
    return told


def listed(url: str) -> Iterator[dict[str, Any]]:
    """Yield what a store tells of the names in a folder: of S3, page by page.

    Raises:
        FileNotFoundError: There is none.
        UserError: The store cannot be read.
    """
    store, folder = _store(url)
    if not hasattr(store, "call_s3"):
        yield from ask(url, lambda: _list_at_once(store, folder), _LIST_SECONDS)
        return
    bucket, key, _ = store.split_path(folder)
    asked = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/", **store.req_kw}
    began, after = time.monotonic(), ""
    while True:
        before = after
        names, after = ask(url, lambda: _page(store, asked), _ANSWER_SECONDS)
        yield from names
        if not after:
            return
        if before == after or time.monotonic() - began > _LIST_SECONDS:
            raise words(url, TimeoutError(f"no end of its list within {_LIST_SECONDS:g} s"))
        asked["ContinuationToken"] = after


def _page(store: Any, asked: dict[str, str]) -> tuple[list[dict[str, Any]], str]:  # noqa: ANN401
    """Return what a page of a listing of S3 tells of names, and the token of the next page."""
    page, bucket = store.call_s3("list_objects_v2", **asked), asked["Bucket"]
    names = [
        {"name": f"{bucket}/{each['Prefix']}", "type": "directory"}
        for each in page.get("CommonPrefixes", ())
    ]
    for each in page.get("Contents", ()):
        names.append(each | {"name": f"{bucket}/{each['Key']}", "size": each["Size"]})
    return names, page["NextContinuationToken"] if page.get("IsTruncated") else ""


def fetch(url: str, start: int, stop: int) -> bytes:
    """Return the bytes of an object from `start` up to `stop`.

    Raises:
        FileNotFoundError: It is no URL of a store.
        UserError: They cannot be read, or the object was deleted.
    """

    store, name = _store(url)

    def get() -> bytes:
        found: bytes = store.cat_file(name, start=start, end=stop)
        if len(found) != stop - start:
            raise OSError(f"{len(found):,} bytes came instead of {stop - start:,}")
        return found

    try:
        return ask(url, get, _ANSWER_SECONDS + (stop - start) / _LEAST_RATE)
    except FileNotFoundError as error:
        raise words(url, error) from error


def name_of(url: str) -> str:
    """Return the name of an object or folder in fsspec's file system of its store."""
    return _store(url)[1]


def _store(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the name in it.

    Raises:
        FileNotFoundError: A name that a checkpoint has of another file leads out of the store.
        UserError: The package of its protocol is not installed, or has no credentials.
    """
    if "://" not in url or _urls.CHAIN in url:  # fsspec would open a local file, unchecked
        raise FileNotFoundError(2, "no such object", url)
    root = _root(url)
    if root not in _stores:
        _load(url)
        _stores[root] = made = ask(url, lambda: _made(root), _ANSWER_SECONDS)
        if hasattr(made, "call_s3"):
            made.connect()  # reads files for a while, and asks no store
    return _stores[root], _stores[root]._strip_protocol(url)  # as url_to_fs does


def _root(url: str) -> str:
    scheme, _, place = url.partition("://")
    return f"{scheme}://{place.partition('/')[0]}"


def _load(url: str) -> None:
    """Import the package of a store, however long the file system that it is on takes.

    Raises:
        UserError: It is not installed.
    """
    from fsspec import get_filesystem_class

    for package in ("azure", "gcsfs"):
        logging.getLogger(package).addHandler(_heard)
    try:
        get_filesystem_class(url.partition(":")[0])
    except (ImportError, ValueError) as error:
        raise words(url, error) from error


def _made(root: str) -> Any:  # noqa: ANN401 - of fsspec
    from fsspec.core import url_to_fs

    return url_to_fs(root)[0]


def _list_at_once(store: Any, folder: str) -> Any:  # noqa: ANN401 - of fsspec
    """List a folder. If that takes long, see with a short question whether the store answers."""
    listing = _begun(lambda: store.ls(folder, detail=True))
    if wait([listing], _ANSWER_SECONDS / 2).not_done:
        with contextlib.suppress(FileNotFoundError):
            _within(_ANSWER_SECONDS / 2, lambda: store.info(folder))
    return listing.result()


def ask(url: str, question: Callable[[], T], seconds: float) -> T:
    """Return the answer to a question about a URL that takes so many seconds at most.

    Raises:
        FileNotFoundError, NotADirectoryError: What is asked about is not there.
        UserError: The store cannot be read, whatever its package has raised.
    """
    root, began = _root(url), time.monotonic()
    for pause in (*(_PAUSES if _patient else _PAUSES[:1]), None):
        if root in _failed:
            raise _failed[root]
        try:
            return _within(seconds, question)
        except (FileNotFoundError, NotADirectoryError, UserError):
            raise
        except Exception as error:
            failed = PermissionError(str(error)) if _is_refusal(error) else error
        over = not _patient and time.monotonic() - began > _AGAIN_SECONDS
        if pause is None or over or isinstance(failed, ImportError | PermissionError):
            break
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
    said = words(url, failed)
    if not isinstance(failed, PermissionError):  # which may be of this name alone
        _failed[root] = said
    raise said from failed


def _within(seconds: float, question: Callable[[], T]) -> T:
    answer = _begun(question)
    if wait([answer], seconds).not_done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answer.result()


def _begun(question: Callable[[], T]) -> Future[T]:
    """Ask in a thread that does not keep the process from ending."""
    answer = Future[T]()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    return answer


def _is_refusal(error: Exception) -> bool:
    """Return whether a store has refused this user; each package says so in its own way."""
    status = {getattr(error, name, None) for name in ("code", "status", "status_code")}
    said = f"{type(error).__name__} {error}"
    return (
        isinstance(error, PermissionError)
        or bool(status & {401, 403, "401", "403"})
        or "redential" in said
        or str(error).startswith("Forbidden:")
    )


def words(url: str, error: Exception) -> UserError:
    """Return words about an error of a store: what, where, and what to do."""
    scheme = url.partition(":")[0]
    said = brief(_urls.masked(str(error))) or type(error).__name__
    package = _PACKAGES.get(scheme, f"fsspec's package for {scheme}")
    own = _CREDENTIALS.get(package)
    credentials = f"{own}, ~/.config/fsspec" if own else "~/.config/fsspec"
    if _in_image.here():
        credentials += '; a container has the home only with [container] mounts = ["~"]'
    where = f"{url} cannot be read on {os.uname().nodename}"
    if isinstance(error, ImportError):
        extra = ": pip install 'coordinate-eval[remote]'" if package == "s3fs" else ""
        return UserError(
            f"{where}: {package} is not installed in this environment. Install it{extra}"
        )
    if isinstance(error, ValueError) and "rotocol" in said:
        return UserError(
            f"{where}: fsspec knows no protocol {scheme}. Check the path, or install the package "
            "that has it"
        )
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"{url} was deleted. Evaluate a later checkpoint, or have training keep its checkpoints"
            " longer"
        )
    if isinstance(error, PermissionError):
        return UserError(
            f"{where} with this user's credentials ({said}). Give the credentials in the "
            f"environment of the jobs or in the store's own configuration of this user "
            f"({credentials}), and check that they may list and read it"
        )
    cause = f"; {brief(_urls.masked(_heard.last))}" if _heard.last else ""
    return StoreSilent(
        f"{where} ({type(error).__name__}: {said}{cause}). Check the bucket's name, the store's "
        f"address, the credentials ({credentials}), and that this machine reaches it"
    )
