"""Tell people by a command or a webhook, in bounded time. What fails is said, and hurts nobody.

Both get the same text: the command on its stdin, the webhook as the body of a POST.
"""

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

COMMAND_SECONDS = 60.0
"""Time that a command gets before it is killed, with all that it has started."""

WEBHOOK_SECONDS = 10.0
"""Time that a webhook gets to answer."""


def call(
    command: Sequence[str],
    text: str,
    environment: Mapping[str, str],
    limit_seconds: float = COMMAND_SECONDS,
) -> str:
    """Call a command with a text on its stdin. Return what went wrong; empty if nothing did."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a zero byte in a word
        return f"cannot be called: {getattr(error, 'strerror', None) or error}"
    try:
        child.communicate(text.encode(), limit_seconds)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit_seconds:g} s and was killed"
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
    return f"ended with {child.returncode}" if child.returncode else ""


def post(address: str, text: str, limit_seconds: float = WEBHOOK_SECONDS) -> str:
    """Post a text to a webhook. Return what went wrong, without the address, which is a secret.

    A server that sends its answer byte by byte meets the same limit.
    """
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    asking = threading.Thread(
        target=lambda: answers.put(_post(address, text, limit_seconds)), daemon=True
    )
    asking.start()
    try:
        return answers.get(timeout=limit_seconds + 1)
    except queue.Empty:
        return f"no answer within {limit_seconds:g} s"


def _post(address: str, text: str, limit_seconds: float) -> str:
    import httpx

    headers = {"Content-Type": "application/json"}
    limit = httpx.Timeout(limit_seconds)
    try:
        # What it answers is not read: it may be long.
        with httpx.stream("POST", address, content=text, headers=headers, timeout=limit) as answer:
            return "" if answer.is_success else f"status {answer.status_code}"
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        return "its address does not begin with http:// or https://, or is malformed"
    except httpx.ConnectError:
        return "it cannot be reached"
    except Exception as error:  # each kind of address has errors of its own
        return type(error).__name__  # its words may have the address
