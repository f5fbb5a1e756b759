"""Tell people of an incident: by a command, by a webhook, once, and without waiting for either."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from coordinate_eval import _files
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir
from coordinate_eval.coordinator.training.guarding.policy import Policy

SCHEMA = "coordinate-eval/incident@1"
COMMAND_SECONDS = 60.0
WEBHOOK_SECONDS = 10.0


class Notifier:
    """Sends each message once, in a thread of its own.

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
        self._dir, self._policy = guard_dir, policy
        self._environment, self._note = environment, note
        self._threads: list[threading.Thread] = []

    def tell(self, key: str, message: Mapping[str, Any]) -> None:
        """Send a message, unless one of this key was sent before."""
        if not (self._policy.command or self._policy.webhook):
            return
        mark = self._dir.root / "told" / key
        if not _files.create(mark, f"{_files.token()}\n"):
            return
        text = json.dumps({"schema": SCHEMA, **message}) + "\n"
        for send in (self._call, self._post):
            thread = threading.Thread(target=send, args=(text,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self) -> None:
        """Wait for messages that are on their way: each has its time limit."""
        for thread in self._threads:
            thread.join(COMMAND_SECONDS + WEBHOOK_SECONDS)

    def _call(self, text: str) -> None:
        if not self._policy.command:
            return
        try:
            done = subprocess.run(
                self._policy.command,
                input=text,
                env=dict(self._environment),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
            if done.returncode:
                self._note(f"`command` of the policy ended with {done.returncode}")
        except (OSError, subprocess.TimeoutExpired) as error:
            self._note(f"`command` of the policy failed: {error}")

    def _post(self, text: str) -> None:
        if not self._policy.webhook:
            return
        try:
            headers = {"Content-Type": "application/json"}
            limit = httpx.Timeout(WEBHOOK_SECONDS)
            # What it answers is not read: it may be long, and come slowly.
            with httpx.stream(
                "POST", self._policy.webhook, content=text, headers=headers, timeout=limit
            ) as answer:
                problem = "" if answer.is_success else f"status {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = type(error).__name__  # its words may have the address, which is a secret
        if problem:
            with contextlib.suppress(ValueError):
                self._note(f"`webhook` of the policy failed: {problem}")
