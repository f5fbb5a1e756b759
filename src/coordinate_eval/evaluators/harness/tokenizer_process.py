"""The tokenizer of a checkpoint in a process of its own, with limits on time and memory.

A chat template is a program, and so is a regular expression: either may never end, or make a text
that fits no memory. Native code cannot be interrupted within a process, so another process asks
it, and ends it. It is forked, because importing transformers takes seconds.

Requests and replies are lines of JSON.
"""

import contextlib
import json
import os
import resource
import select
import signal
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from coordinate_eval._format import brief
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.tokenizer import load_tokenizer

CPU_SECONDS: Final = 60.0
"""Of one call: a text of a million tokens takes a few."""

MEMORY_BYTES: Final = 4 << 30
"""Address space beyond what the forking process has: thirty times the largest tokenizer.json."""

_MOST_PER_BYTE, _MOST_MORE = 16, 1 << 20
"""Tokens, or characters of a chat, for each byte of the input, and more than that. Byte fallback
gives one token a byte, and a compatibility decomposition up to eleven bytes a byte (U+FDFA)."""

_LOOK_SECONDS = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")

# What tokenizers have taken longest on: one kind of character, and then another.
_PROBES = tuple(text * 2000 + "!" for text in ("a", " ", "1", "A", "-", "\n", "é", "aA1 -"))


class TokenizerProcess:
    """A tokenizer with the attributes and methods of transformers' that prompts are made with.

    Every call raises `UserError` if it takes more than `CPU_SECONDS` or `MEMORY_BYTES`, and then
    every later call does.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer in a folder, and try it on a few texts.

        Raises:
            UserError: There is none, transformers does not know its class, or it has no end.
        """
        self.name_or_path = str(folder)
        self._folder, self._ended = folder, ""
        self._process, self._requests, self._replies = _fork(folder)
        self._close = weakref.finalize(
            self, _end, self._process, self._requests, self._replies, os.getpid()
        )
        tokens = self._ask("loading it", 0, "start")
        self.bos_token_id: int | None = tokens["bos_token_id"]
        self.eos_token_id: int | None = tokens["eos_token_id"]
        self.bos_token: str | None = tokens["bos_token"]
        self.eos_token: str | None = tokens["eos_token"]

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process so far, in seconds."""
        return _cpu_seconds(self._process)

    def encode(self, text: str, **options: bool) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self._ask(
            "cutting a text into tokens", len(text), "encode", text, options
        )
        return tokens

    def decode(self, tokens: int | list[int]) -> str:
        """Return the text of tokens."""
        text: str = self._ask("joining tokens", 1, "decode", tokens)
        return text

    def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> str:
        """Return a chat as text.

        Raises:
            TemplateError: The template refuses it.
        """
        size = sum(len(str(value)) for message in messages for value in message.values())
        text: str = self._ask("the chat template", size, "apply_chat_template", messages, options)
        return text

    def _ask(self, what: str, size: int, *request: object) -> Any:  # noqa: ANN401  any JSON value
        if self._ended:
            raise UserError(self._ended)
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            reply = json.loads(self._reply(what))
        except (BrokenPipeError, ValueError):
            self._give_up(f"{what} ended its process, perhaps for want of memory")
        if "error" in reply:
            raise _exception(reply["kind"], reply["error"])
        result = reply["result"]
        if isinstance(result, str | list) and len(result) > _MOST_MORE + _MOST_PER_BYTE * 4 * size:
            self._give_up(f"{what} makes {len(result):,} of {size:,} characters")
        return result

    def _reply(self, what: str) -> bytes:
        """Return the next line that the process writes."""
        line = bytearray()
        began = self.cpu_seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._replies], [], [], _LOOK_SECONDS)
            if ready:
                part = self._replies.read1(1 << 20)  # type: ignore[attr-defined]  # it is buffered
                if not part:
                    raise BrokenPipeError
                line += part
            elif self.cpu_seconds - began > CPU_SECONDS:
                self._give_up(f"{what} takes more than {CPU_SECONDS:g} seconds")
        return bytes(line)

    def _give_up(self, why: str) -> NoReturn:
        self._close()
        self._ended = (
            f"the tokenizer in {self._folder} cannot be used: {why}. It is damaged or malicious: "
            "compare its tokenizer.json and its chat template with the model's, or name another "
            "folder with --tokenizer"
        )
        raise UserError(self._ended)


def _exception(kind: str, text: str) -> Exception:
    """Return the exception of the process, of the kinds that callers tell apart."""
    from jinja2.exceptions import TemplateError

    kinds: dict[str, type[Exception]] = {"user": UserError, "template": TemplateError}
    return kinds.get(kind, ValueError)(text)


def _fork(folder: Path) -> tuple[int, BinaryIO, BinaryIO]:
    """Start the process; return its id, and the pipes to it and from it."""
    from transformers import AutoTokenizer  # noqa: F401  # once, for all processes that are forked

    to_child, requests = os.pipe()
    replies, from_child = os.pipe()
    with warnings.catch_warnings():
        # Threads of this process are not in the other one, which runs nothing that waits for them.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if not process:
        _run(folder, to_child, from_child)
    os.close(to_child)
    os.close(from_child)
    return process, os.fdopen(requests, "wb"), os.fdopen(replies, "rb")


def _end(process: int, requests: BinaryIO, replies: BinaryIO, parent: int) -> None:
    if os.getpid() != parent:
        return  # a fork of the owner, which has it still
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)
    for pipe in (requests, replies):
        with contextlib.suppress(OSError):
            pipe.close()


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of a process in seconds, user and system."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


# -- in the process --------------------------------------------------------------------------------


def _run(folder: Path, requests: int, replies: int) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        _limit()
        os.dup2(requests, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)  # where native code complains as it dies
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        _close_all_but(replies)
        with os.fdopen(0, "rb") as source, os.fdopen(replies, "wb") as target:
            tokenizer: Any = None
            for line in source:
                name, *arguments = json.loads(line)
                try:
                    if name == "start":
                        tokenizer = load_tokenizer(folder)
                        result = _started(tokenizer)
                    else:
                        result = _call(getattr(tokenizer, name), *arguments)
                    reply: dict[str, Any] = {"result": result}
                except Exception as error:
                    reply = {"kind": _kind(error), "error": _words(error)}
                target.write(json.dumps(reply).encode() + b"\n")
                target.flush()
    finally:
        os._exit(1)  # the rest of this process belongs to the one that forked it


def _limit() -> None:
    fields = Path("/proc/self/statm").read_text().split()
    most = int(fields[0]) * resource.getpagesize() + MEMORY_BYTES
    for kind, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _close_all_but(kept: int) -> None:
    """Close what this process need not have: a lock, or the end of somebody's pipe."""
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _started(tokenizer: Any) -> dict[str, Any]:  # noqa: ANN401  one of many classes
    for text in _PROBES:
        tokenizer.encode(text)
    names = ("bos_token_id", "eos_token_id", "bos_token", "eos_token")
    return {name: getattr(tokenizer, name) for name in names}


def _call(function: Callable[..., Any], argument: Any, options: Any = None) -> Any:  # noqa: ANN401
    options = dict(options or {})
    if function.__name__ == "apply_chat_template":
        options["tokenize"] = False
    return function(argument, **options)


def _kind(error: Exception) -> str:
    from jinja2.exceptions import TemplateError

    if isinstance(error, UserError):
        return "user"
    return "template" if isinstance(error, TemplateError) else ""


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else brief(error)
