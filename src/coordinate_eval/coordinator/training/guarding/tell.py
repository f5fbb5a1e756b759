"""Tell people of an incident: by a command, by a webhook, once, and without waiting for either."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from coordinate_eval import _files, _notices
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir
from coordinate_eval.coordinator.training.guarding.policy import Policy

SCHEMA = "coordinate-eval/incident@1"


class Notifier:
    """Sends each message once, in a thread of its own.

    It is noted afterwards that a message was sent: a guard that was killed meanwhile, or that could
    not send it, is followed by one that sends it again.

    Args:
        guard_dir: where it is noted that a message was sent.
        policy: that names a command and an address.
        environment: of the command.
        note: called with what fails, for the log.
    """

    def __init__(
        self,
        guard_dir: GuardDir,
        policy: Policy,
        environment: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self._told, self._note = guard_dir.root / "told", note
        self._threads: dict[tuple[str, str], threading.Thread] = {}
        self._ways: dict[str, Callable[[str], str]] = {}
        if policy.command:
            self._ways["command"] = lambda text: _notices.call(policy.command, text, environment)
        if policy.webhook:
            self._ways["webhook"] = lambda text: _notices.post(policy.webhook, text)

    def tell(self, key: str, message: Mapping[str, Any]) -> None:
        """Send a message, unless one of this key was sent before."""
        text = json.dumps({"schema": SCHEMA, **message}) + "\n"
        for way in self._ways:
            if (way, key) in self._threads or (self._told / f"{key}.{way}").exists():
                continue
            thread = threading.Thread(target=self._send, args=(way, key, text), daemon=True)
            self._threads[way, key] = thread
            thread.start()

    def wait(self) -> None:
        """Wait for messages that are on their way: each has its time limit."""
        for thread in self._threads.values():
            thread.join(_notices.COMMAND_SECONDS + _notices.WEBHOOK_SECONDS)

    def _send(self, way: str, key: str, text: str) -> None:
        if problem := self._ways[way](text):
            self._note(f"`{way}` of the policy failed: {problem}")
        else:
            _files.write(self._told / f"{key}.{way}", "")
