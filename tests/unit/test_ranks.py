"""The processes of a trial on several nodes: each ends when another does, and nobody else joins."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs import PATIENCE_SECONDS, until

from coordinate_eval.coordinator.run.paths import RunDir

STAND_IN = """
import sys, threading
from pathlib import Path
from coordinate_eval.coordinator.incidents.causes import Failure
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.ranks import Finished, RankLost, Ranks
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals

def hear_the_last():
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.name != "followers":
            thread.join()

def tell(lost):
    print("told of", lost.node, flush=True)
    told.set()

told = threading.Event()
if sys.argv[2] != "0":
    told.set()
stop_on_signals()
root, rank, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
with Ranks(RunDir(root), "t", "7.0", names) as ranks:
    try:
        if rank == 0:
            ranks.lead(tell)
            print(ranks.begin([2, 1], args={"a": 1}), flush=True)
        else:
            ranks.join(rank, names[rank])
            print(*ranks.wait_to_begin(rank), flush=True)
        for line in sys.stdin:  # what an engine waits for comes from the others
            if line == "fail\\n":
                ranks.fail("GPU 3 is broken", Failure("node", in_doubt=True))
            if line == "end\\n":
                ranks.end()
            sys.exit()
    except StopRequested:
        print("stopping", flush=True)
        if rank:
            ranks.stop()
        elif sys.stdin.readline() == "hear\\n":
            hear_the_last()
        ranks.end()
        print("stopped", flush=True)
    except RankLost as lost:
        told.wait(900)
        print(lost.node, lost.why.cause, lost.why.in_doubt, lost, flush=True)
    except Finished:
        ranks.over()
        hear_the_last()
        print("finished", flush=True)
"""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """A leader on n1 and a follower on n2, whose parts have begun."""
    leader, follower = (
        subprocess.Popen(
            [sys.executable, "-c", STAND_IN, tmp_path, str(rank), "n1,n2"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    )  # fmt: skip
    begun, other = line(leader), line(follower)
    assert "rank=0" in begun
    assert "rank=1" in other
    assert "layers=(2, 1)" in other
    assert "{'args': {'a': 1}}" in other
    assert begun.partition("address=")[2].partition(", layers")[0] in other, "the same place"
    return leader, follower


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


Pair = tuple[subprocess.Popen[str], subprocess.Popen[str]]


def test_a_leader_learns_that_a_follower_was_killed(pair: Pair) -> None:
    leader, follower = pair
    follower.kill()
    assert line(leader) == "told of n2\n", "while the engine is closed"
    assert line(leader) == "n2 node True the part of the engine on n2 has ended without a word\n"
    assert leader.wait(PATIENCE_SECONDS) == 0


def test_a_follower_ends_with_a_leader_that_was_killed(pair: Pair) -> None:
    leader, follower = pair
    leader.kill()
    assert line(follower).startswith("n1 node True the part of the engine on n1 has ended")
    assert follower.wait(PATIENCE_SECONDS) == 0


def test_a_follower_says_why_it_fails(pair: Pair) -> None:
    leader, follower = pair
    say(follower, "fail")
    assert line(leader) == "told of n2\n"
    assert line(leader) == "n2 node True the part of the engine on n2 failed: GPU 3 is broken\n"


def test_a_leader_that_stops_blames_no_follower_that_stops_first(pair: Pair) -> None:
    leader, follower = pair
    leader.send_signal(signal.SIGTERM)
    assert line(leader) == "stopping\n"
    follower.kill()
    say(leader, "hear")
    assert line(leader) == "stopped\n"
    assert leader.wait(PATIENCE_SECONDS) == 0


def test_a_leader_stops_with_a_follower_that_was_asked_to_stop(pair: Pair) -> None:
    leader, follower = pair
    follower.send_signal(signal.SIGTERM)
    assert line(leader) == "stopping\n", "and no word of a lost one"
    say(leader, "end")
    assert leader.wait(PATIENCE_SECONDS) == follower.wait(PATIENCE_SECONDS) == 0


def test_a_leader_that_is_done_lets_its_followers_end_in_their_time(pair: Pair) -> None:
    leader, follower = pair
    say(leader, "end")
    assert line(follower) == "finished\n"
    assert leader.wait(PATIENCE_SECONDS) == follower.wait(PATIENCE_SECONDS) == 0


def test_nobody_joins_without_the_token(tmp_path: Path) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", STAND_IN, tmp_path, "0", "n1,n2"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    path = RunDir(tmp_path).ranks("t")
    until(path.exists, "a leader that listens")
    assert path.stat().st_mode & 0o077 == 0, "the token is the user's alone"
    told = json.loads(path.read_text())
    for hello in (b"{}\n", b"no json\n", b'{"token": "x", "rank": 1}\n', b"x" * 100_000):
        with socket.create_connection((told["addresses"][0], told["port"])) as stranger:
            stranger.sendall(hello)
            with stranger.makefile("rb") as answer:
                assert answer.read() == b""
    leader.kill()
    assert leader.wait(PATIENCE_SECONDS) != 0
