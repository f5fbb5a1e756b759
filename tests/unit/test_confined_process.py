"""What a process of the harness may do to the one that waits for its reply."""

import os
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from coordinate_eval.errors import RecordError
from coordinate_eval.evaluators.confined import process
from coordinate_eval.evaluators.confined.messages import Command, Setup, Work
from coordinate_eval.evaluators.confined.view import hidden_file
from coordinate_eval.records import Dataset

COMMAND = Command(number=0, work=Work.QUESTIONS, dataset=Dataset(name="evil"))
FINISH = COMMAND.model_copy(update={"work": Work.FINISH})


class Asked(process._Process):
    """A process of Python that runs a text, which finds the descriptor for replies in `fd`."""

    def __init__(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        popen: Any = subprocess.Popen

        def runs_text(argv: list[str], **options: object) -> object:
            said = f"import os\nfd = {argv[4]}\n{text}"
            return popen([argv[0], "-I", "-S", "-c", said], **options)

        monkeypatch.setattr(subprocess, "Popen", runs_text)
        setup = Setup(tokenizer="", include_path=[], engine="vllm", max_length=1)
        super().__init__(setup, environment=os.environ, look=lambda _: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Asked]:
    return lambda text: Asked(text, monkeypatch)


def test_a_reply_in_small_pieces_takes_no_more_memory(asked: Callable[[str], Asked]) -> None:
    text = """
import fcntl, select, termios
os.write(fd, b'{"number": 1, "error": "')
for n in range(20_000):
    while fcntl.ioctl(fd, termios.FIONREAD, b"1234") != bytes(4):
        os.sched_yield()
    os.write(fd, b"xy")
os.write(fd, b'"}\\n')
"""
    with asked(text) as answering:
        tracemalloc.start()
        try:
            reply = answering.ask(COMMAND)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(reply.error) == 40_000
    # As an object of its own, a piece takes 35 bytes, and 8 in a list.
    assert most < process._PIECE_BYTES + 20_000 * 20


@pytest.mark.parametrize("said", ["1e9", "0.0", "1.7976931348623157e308"])
def test_it_took_no_more_cpu_seconds_than_it_was_waited_for(
    asked: Callable[[str], Asked], said: str
) -> None:
    began = time.monotonic()
    with asked(f"""os.write(fd, b'{{"number": 1, "cpu_seconds": {said}}}\\n')""") as answering:
        reply = answering.ask(FINISH)
    assert 0 <= reply.cpu_seconds <= min(float(said), time.monotonic() - began)


@pytest.mark.parametrize("said", ["NaN", "Infinity", "-1.0", "1e400"])
def test_what_is_no_number_of_seconds_is_no_reply(asked: Callable[[str], Asked], said: str) -> None:
    text = f"""os.write(fd, b'{{"number": 1, "cpu_seconds": {said}}}\\n')"""
    with asked(text) as answering, pytest.raises(RecordError, match="was disturbed"):
        answering.ask(FINISH)


@pytest.mark.parametrize("name", ["a\0b", "x" * 10_000, "/" * 10_000 + "a"])
def test_an_error_may_miss_what_no_file_is_called(name: str) -> None:
    assert hidden_file(f"No such file or directory: '{name}'", "/") == ""
