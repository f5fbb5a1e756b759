"""What a process of the harness may do to the one that waits for its reply."""

import os
import sys
import time
import tracemalloc

import pytest

from coordinate_eval.errors import RecordError
from coordinate_eval.evaluators.confined import process
from coordinate_eval.evaluators.confined.messages import Command, Reply, Setup, Work
from coordinate_eval.evaluators.confined.view import hidden_file
from coordinate_eval.records import Dataset

COMMAND = Command(number=0, work=Work.QUESTIONS, dataset=Dataset(name="evil"))
FINISH = COMMAND.model_copy(update={"work": Work.FINISH})


class Asked(process._Process):
    """A process of Python that runs a text, which finds the descriptor for replies in `fd`."""

    def __init__(self, text: str) -> None:
        self._conversation = process.Conversation(self)
        said = f"import os, sys\nfd = int(sys.argv[2])\n{text}"
        arguments = [sys.executable, "-I", "-S", "-c", said]
        setup = Setup(tokenizer="", include_path=[], engine="vllm", max_length=1)
        super().__init__(setup, arguments, self._conversation.theirs, environment=os.environ)
        self._conversation.give_away()

    def ask(self, command: Command) -> Reply:
        return self._conversation.ask(command)


def test_a_reply_in_small_pieces_takes_no_more_memory() -> None:
    text = """
import fcntl, select, termios
os.write(fd, b'{"number": 1, "error": "')
for n in range(5000):
    while fcntl.ioctl(fd, termios.FIONREAD, b"1234") != bytes(4):
        os.sched_yield()
    os.write(fd, b"xy")
os.write(fd, b'"}\\n')
"""
    with Asked(text) as answering:
        tracemalloc.start()
        try:
            reply = answering.ask(COMMAND)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(reply.error) == 10_000
    # As an object of its own, a piece takes 35 bytes, and 8 in a list.
    assert most < process._PIECE_BYTES + 5000 * 20


@pytest.mark.parametrize("said", ["1e9", "0.0", "1.7976931348623157e308"])
def test_it_took_no_more_cpu_seconds_than_it_was_waited_for(
    said: str,
) -> None:
    began = time.monotonic()
    with Asked(f"""os.write(fd, b'{{"number": 1, "cpu_seconds": {said}}}\\n')""") as answering:
        reply = answering.ask(FINISH)
    assert 0 <= reply.cpu_seconds <= min(float(said), time.monotonic() - began)


@pytest.mark.parametrize("said", ["NaN", "Infinity", "-1.0", "1e400"])
def test_what_is_no_number_of_seconds_is_no_reply(said: str) -> None:
    text = f"""os.write(fd, b'{{"number": 1, "cpu_seconds": {said}}}\\n')"""
    with Asked(text) as answering, pytest.raises(RecordError, match="was disturbed"):
        answering.ask(FINISH)


@pytest.mark.parametrize("name", ["a\0b", "x" * 10_000, "/" * 10_000 + "a"])
def test_an_error_may_miss_what_no_file_is_called(name: str) -> None:
    assert hidden_file(f"No such file or directory: '{name}'", "/") == ""
