"""Tell people of an incident, by a command and a webhook, without waiting for either.

A message is a file before it is sent, and the file says where it has not arrived yet. So it arrives
at least once, also where a guard is killed meanwhile, or it is seen that it has not arrived.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinate_eval import _files, _notices
from coordinate_eval._clock import growing
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, Notice
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.errors import CoordinateError

SCHEMA = "coordinate-eval/incident@1"

MOST_TRIES = 8
"""Times that a message is sent. With the pauses, the last one is ten minutes after the first."""

PAUSE_SECONDS = 5.0
"""Pause before a message is sent for the second time. It doubles each time."""

LONGEST_PAUSE_SECONDS = 300.0

LEAVE_SECONDS = 30.0
"""Time for which a guard that leaves waits for messages that have not arrived yet."""


class Notifier:
    """Sends each message until it has arrived, in a thread of its own.

    Args:
        guard_dir: where messages are kept.
        policy: that names a command and an address.
        environment: of the command.
        note: called with what fails, for the log.
        pause: seconds before a message is sent again.
    """

    def __init__(
        self,
        guard_dir: GuardDir,
        policy: Policy,
        environment: Mapping[str, str],
        note: Callable[[str], None],
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._dir, self._note, self._pause = guard_dir, note, pause
        self._leaves = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ways: dict[str, Callable[[str], str]] = {}
        if policy.webhook:
            self._ways["webhook"] = lambda text: _notices.post(policy.webhook, text)
        if policy.command:
            self._ways["command"] = lambda text: _notices.call(policy.command, text, environment)

    def go_on(self) -> None:
        """Send what a guard before this one has left."""
        for path, notice in self._dir.notices().items():
            if notice.left and notice.tries < MOST_TRIES:
                self._start(path)

    def tell(self, key: str, message: Mapping[str, Any]) -> None:
        """Send a message, unless there is one of this key."""
        notice = Notice(
            words=str(message.get("words", "")),
            text=json.dumps({"schema": SCHEMA, **message}) + "\n",
            left=dict.fromkeys(self._ways, ""),
            token=_files.token(),
        )
        path = self._dir.told / f"{key}.json"
        if notice.left and _files.create(path, notice.model_dump_json() + "\n"):
            self._start(path)

    def wait(self) -> None:
        """Wait a moment for messages that are on their way. What is left the next guard sends."""
        for thread in self._threads:
            thread.join(LEAVE_SECONDS / len(self._threads))
        self._leaves.set()
        for thread in self._threads:
            thread.join(_notices.COMMAND_SECONDS + _notices.WEBHOOK_SECONDS)

    def _start(self, path: Path) -> None:
        thread = threading.Thread(target=self._send, args=(path,), daemon=True)
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]

    def _send(self, path: Path) -> None:
        """Send a message until it has arrived, this process leaves, or it was sent too often."""
        with contextlib.suppress(OSError, CoordinateError):  # the folder is gone, or is full
            notice = _files.read_record(path, Notice)
            while notice.left and notice.tries < MOST_TRIES:
                notice = self._tried(notice)
                _files.write_record(path, notice)
                pause = growing(self._pause, notice.tries - 1, LONGEST_PAUSE_SECONDS)
                if notice.left and self._leaves.wait(pause):
                    break

    def _tried(self, notice: Notice) -> Notice:
        left = {}
        for way, before in notice.left.items():
            send = self._ways.get(way)  # another policy may have taken its place
            if send is not None and (problem := send(notice.text)):
                left[way] = problem
                if problem != before:
                    with contextlib.suppress(ValueError):  # the log is closed
                        self._note(f"`{way}` of the policy failed: {problem}")
        return notice.model_copy(update={"left": left, "tries": notice.tries + 1})
