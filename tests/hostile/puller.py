"""Pull programs as a metric job does: started by `place.py` as root or as an ordinary user.

It owns what such a job's user owns and a program must not touch: keys in its keyrings and shared
memory. Each line of its input is a JSON object, and so is each line of its answers.
"""

import ctypes
import json
import os
import platform
import signal
import sys
from typing import Any

from coordinate_eval.errors import CoordinateError, UserError
from coordinate_eval.evaluators.sandbox.inside import show
from coordinate_eval.evaluators.sandbox.sandbox import Level, Sandbox
from coordinate_eval.records import PYTHON, Question, QuestionKind

ADD_KEY, KEYCTL = (248, 250) if platform.machine() == "x86_64" else (217, 219)
JOIN_SESSION, LINK, READ = 1, 8, 11
SESSION, USER = RINGS = (-3, -4)

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.shmat.restype = ctypes.c_void_p


def _read_key(serial: int) -> str:
    buffer = ctypes.create_string_buffer(4096)
    size = libc.syscall(KEYCTL, READ, serial, buffer, len(buffer))
    return buffer.raw[: max(size, 0)].hex()


def _system_v(user: int) -> list[str]:
    """Return the objects of System V that belong to the user, which no process's end removes.

    Those of root are not told apart: other tests have some, and no program has root's id.
    """
    if user == 0:
        return []
    found = []
    for kind, column in (("shm", 7), ("sem", 4), ("msg", 7)):
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
        found += [f"{kind} {row[1]}" for row in rows if int(row[column]) == user]
    return sorted(found)


class _Owned:
    """What belongs to the submitter outside of any file."""

    def __init__(self, mark: str, secret: str) -> None:
        libc.syscall(KEYCTL, JOIN_SESSION, None)
        libc.syscall(KEYCTL, LINK, USER, SESSION)  # as a login does
        text = secret.encode()
        self.keys = [
            libc.syscall(ADD_KEY, b"user", mark.encode(), text, len(text), ring) for ring in RINGS
        ]
        self.shm_key = int.from_bytes(os.urandom(3), "big") + 1
        self.shm = libc.shmget(self.shm_key, 4096, 0o1600)
        self.segment = (ctypes.c_char * 4096).from_address(libc.shmat(self.shm, None, 0))
        self.segment.value = text

    def _keyring(self, ring: int) -> list[str]:
        """Return the keys in a keyring; of root's own, which tests share, only this puller's."""
        listed = bytes.fromhex(_read_key(ring))
        serials = [
            int.from_bytes(listed[n : n + 4], sys.byteorder) for n in range(0, len(listed), 4)
        ]
        shared = ring == USER and os.geteuid() == 0
        return sorted(str(each) for each in serials if not shared or each in self.keys)

    def state(self) -> dict[str, Any]:
        """Return all that a program must not have changed."""
        return {
            "keys": [_read_key(key) for key in self.keys],
            "keyrings": [self._keyring(ring) for ring in RINGS],
            "shared memory": self.segment.value.decode(),
            "System V": _system_v(os.geteuid()),
        }


def _run(sandbox: Sandbox, program: str, seconds: float, language: str) -> dict[str, Any]:
    question = Question(
        id="q", kind=QuestionKind.PROGRAM, content=program, timeout_seconds=seconds,
        language=language,
    )  # fmt: skip
    try:
        return dict(json.loads(sandbox.run(question).line()))
    except (CoordinateError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _probe(allow_unsafe: bool) -> dict[str, str]:
    try:
        return {"level": Sandbox.probe(allow_unsafe=allow_unsafe).level}
    except UserError as error:
        return {"error": str(error)}


def main() -> None:
    """Answer each line until the input ends."""
    mark, secret, level = sys.argv[1:4]
    owned = _Owned(mark, secret)
    show(False)  # as `_metric` does
    sandbox = Sandbox(Level(level))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its terminal closes before its input does
    for line in sys.stdin:
        match json.loads(line):
            case {"run": program, "seconds": seconds, **more}:
                answer = _run(sandbox, program, seconds, str(more.get("language", PYTHON)))
            case {"probe": allow_unsafe}:
                answer = dict(_probe(allow_unsafe))
            case {"state": _}:
                answer = owned.state()
            case _:
                answer = {"shm": owned.shm, "shm_key": owned.shm_key, "keys": owned.keys}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
