"""The job that asks a judge: what it publishes, keeps, gives back, and leaves with."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.judges import Judge, Reply, fails, question, says, text_of
from tests.runs import PATIENCE_SECONDS, command, lasting_port, until

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Run, read_run
from coordinate_eval.coordinator.workers.judging.judge import run_judge
from coordinate_eval.evaluators.servers import connection
from coordinate_eval.records import Answer, Question, Shard, Span

ITEMS = 30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again soon."""
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(connection, "MOST_PAUSE_SECONDS", 0.1)


class Asking:
    """A run with shards of ten items, each of which asks one question."""

    def __init__(
        self,
        folder: Path,
        server: Judge,
        name: str = "run",
        *,
        items: int = ITEMS,
        patience_seconds: float = PATIENCE_SECONDS,
        **judge: Any,
    ) -> None:
        self.dir = RunDir(folder / name)
        self.ledger = Ledger(self.dir, "answers")
        settings = Settings.model_validate(
            {
                "cache_dir": str(folder / "cache"),
                "judge": {"base_url": server.url, "model": "judge", "concurrency": 8} | judge,
                "supervisor": {"patience_seconds": patience_seconds},
            },
            extra="forbid",
        )
        shards = [
            Shard(dataset="a", start=n, stop=n + 10, gpu_seconds=1, metric_cpu_seconds=0)
            for n in range(0, items, 10)
        ]
        run = make_run(asks=["a"], judged=["a"], shards=shards, settings=settings)
        _files.write_record(self.dir.run, run)
        _files.write(self.dir.supervisors_folder / "1.json", "{}")
        for portion in all_portions(self.run):
            self.write(portion, [question(f"item {n}") for n in range(portion.start, portion.stop)])

    @property
    def run(self) -> Run:
        return read_run(self.dir)

    def write(self, portion: Span, questions: list[Question]) -> None:
        _files.write(self.dir.questions(portion), "".join(each.line() for each in questions))

    def ask(self) -> JudgeProgress:
        """Run the job to its end."""
        run_judge(self.dir)
        return _files.read_record(self.dir.judge, JudgeProgress)

    def answers(self) -> dict[str, Answer]:
        """Published answers by question; no portion has one twice."""
        found: dict[str, Answer] = {}
        for portion in all_portions(self.run):
            path = self.dir.published("answers", portion)
            lines = list(_files.lines(path)) if path.exists() else []
            read = {a.id: a for a in map(Answer.model_validate_json, lines)}
            assert len(read) == len(lines)
            found |= read
        return found

    @property
    def open(self) -> int:
        return len(self.ledger.open_claims(all_portions(self.run)))


def kept(folder: Path) -> int:
    """Return how many answers are kept for later runs: they are a moment after they came."""
    return len(list((folder / "cache").rglob("*.json")))


def echo(body: dict[str, Any], number: int) -> Reply:
    return says(f"[[{text_of(body)}]]")


def now_and_then(*wrong: Reply) -> Callable[[dict[str, Any], int], Reply]:
    """Fail every other time, each time in another way."""
    ways = itertools.cycle(wrong)
    return lambda body, number: next(ways) if number % 2 else echo(body, number)


def test_all_questions_are_answered_whatever_the_judge_does_meanwhile(tmp_path: Path) -> None:
    torn = Reply(body=b'{"choices": [', claims_bytes=100)
    misbehaves = now_and_then(
        fails(429, retry_after="0"), fails(500), torn, Reply(drops=True), Reply(body=b"garbage")
    )
    with Judge(misbehaves) as server:
        asking = Asking(tmp_path, server)
        progress = asking.ask()
    answers = asking.answers()
    assert {a.result for a in answers.values()} == {f"[[item {n}]]" for n in range(ITEMS)}
    assert (progress.state, progress.answered, progress.left) == ("asking", ITEMS, 0)
    assert progress.tokens == 15 * ITEMS
    assert server.most_at_once <= 8


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    with Judge(echo) as server:
        asking = Asking(tmp_path, server)
        same = [question("the same")]
        for portion in all_portions(asking.run):
            asking.write(portion, same)
        asking.ask()
    assert len(server.asked) == 1
    assert len(asking.answers()) == 1
    assert not asking.ledger.unpublished(all_portions(asking.run))


def test_a_later_run_asks_a_judge_nothing_that_it_has_answered(tmp_path: Path) -> None:
    with Judge(echo) as server:
        first = Asking(tmp_path, server)
        first.ask()
        again = Asking(tmp_path, server, "again")
        progress = again.ask()
        assert len(server.asked) == ITEMS
    assert (progress.answered, progress.kept, progress.tokens) == (0, ITEMS, 0)
    assert {k: a.result for k, a in again.answers().items()} == {
        k: a.result for k, a in first.answers().items()
    }
    (kept,) = (tmp_path / "cache").glob("judged-*")
    assert kept.stat().st_mode & 0o077 == 0


def test_a_kept_answer_to_another_question_is_not_taken(tmp_path: Path) -> None:
    with Judge(echo) as server:
        Asking(tmp_path, server).ask()
        one, other = sorted((tmp_path / "cache").rglob("*.json"))[:2]
        one.write_bytes(other.read_bytes())
        other.write_text("{torn")
        again = Asking(tmp_path, server, "again")
        again.ask()
    assert len(server.asked) == ITEMS + 2
    assert {a.result for a in again.answers().values()} == {f"[[item {n}]]" for n in range(ITEMS)}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_job_loses_only_what_was_in_flight(tmp_path: Path, how: signal.Signals) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        reply = echo(body, number)
        reply.after_seconds = 1000 if number in range(10, 14) else 0.0
        return reply

    with Judge(behave) as server:
        asking = Asking(tmp_path, server, concurrency=4)
        job = subprocess.Popen(
            command("_judge", asking.dir.root), env=os.environ | {TASK_VARIABLE: "1.0"}
        )
        until(
            lambda: (len(server.asked) == 14 and kept(tmp_path) == 10) or job.poll() is not None,
            "ten answers, and four questions",
        )
        job.send_signal(how)
        job.wait(PATIENCE_SECONDS)
        left = asking.ledger.open_claims(all_portions(asking.run))
        assert bool(left) == (how == signal.SIGKILL), "a signal has time to give claims back"
        for open_claim in left:  # as the supervisor does
            asking.ledger.revoke(open_claim.span, open_claim.attempt, "died")
        progress = asking.ask()
    assert len(asking.answers()) == ITEMS
    assert len(server.asked) == ITEMS + 4
    assert progress.answered == ITEMS


def test_a_budget_is_kept_to_and_the_run_goes_on_when_it_is_raised(tmp_path: Path) -> None:
    with Judge(echo) as server:
        asking = Asking(tmp_path, server, max_requests=17)
        progress = asking.ask()
        assert progress.state == "spent"
        assert "max_requests" in progress.said
        assert len(server.asked) == 17
        again = asking.ask()
        assert again.answered == progress.answered, "a restart does not begin to count anew"
        assert asking.open == 0
        run = json.loads(asking.dir.run.read_text())
        run["settings"]["judge"] |= {"max_requests": 10**6}
        _files.write(asking.dir.run, json.dumps(run))
        assert asking.ask().state == "asking"
    assert len(asking.answers()) == len(server.asked) == ITEMS


def test_a_judge_that_is_away_is_left_with_its_last_words(tmp_path: Path) -> None:
    with Judge(echo, port=lasting_port()) as server:
        asking = Asking(tmp_path, server, patience_seconds=0.5)
    progress = asking.ask()
    assert progress.state == "silent"
    assert "connection refused at http://127.0.0.1" in progress.said
    assert asking.open == 0
    with Judge(echo, port=server.port):
        asking = Asking(tmp_path, server)  # its run is more patient now
        assert asking.ask().state == "asking"
    assert len(asking.answers()) == ITEMS


def test_one_question_without_a_usable_answer_keeps_only_its_portion_back(tmp_path: Path) -> None:
    def all_asked() -> bool:
        return len({text_of(body) for body in server.asked}) == ITEMS

    def behave(body: dict[str, Any], number: int) -> Reply:
        if text_of(body) != "item 3":
            return echo(body, number)
        # It is not given up before the others are asked.
        return dataclasses.replace(fails(500, "cannot"), when=all_asked)

    with Judge(behave) as server:
        asking = Asking(tmp_path, server, patience_seconds=2)
        progress = asking.ask()
    assert (progress.state, progress.answered) == ("silent", ITEMS - 1)
    assert "cannot" in progress.said
    assert [p.start for p in asking.ledger.unpublished(all_portions(asking.run))] == [0]


def test_a_refused_key_ends_the_job_and_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-the-wrong-secret"
    monkeypatch.setenv("JUDGE_KEY", secret)
    with Judge(echo, key="sk-the-right-one") as server:
        asking = Asking(tmp_path, server, api_key_env="JUDGE_KEY")
        progress = asking.ask()
        assert (progress.state, asking.open) == ("refuses", 0)
        assert "api_key_env" in progress.said
        monkeypatch.delenv("JUDGE_KEY")
        assert "JUDGE_KEY" in asking.ask().said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(secret.encode() in path.read_bytes() for path in files)


def test_a_question_that_is_none_is_refused_and_not_asked(tmp_path: Path) -> None:
    with Judge(echo) as server:
        asking = Asking(tmp_path, server, items=10)
        forged = question("forged").model_copy(update={"id": question("item 1").id})
        asking.write(Span("a", 0, 10), [forged, question("item 2")])
        asking.ask()
        Asking(tmp_path, server, "another").ask()
    answers = asking.answers()
    assert not answers[forged.id].passed
    assert answers[question("item 2").id].passed
    assert len(server.asked) == 1 + ITEMS - 1, "what was forged is not kept for other runs"


def test_odd_answers_are_counted_while_the_judge_is_asked(tmp_path: Path) -> None:
    kinds = [
        says("[[8]]", finish_reason="length"),
        says("<think>[[3]]", finish_reason="length"),
        says(None, finish_reason="length"),
        says(None, refusal="No."),
        says("[[8]]"),
    ]

    def behave(body: dict[str, Any], number: int) -> Reply:
        if "temperature" in body:
            return fails(400, "`temperature` is deprecated for this model.")
        return kinds[int(text_of(body).split()[-1]) % 5]

    with Judge(behave) as server:
        asking = Asking(tmp_path, server)
        progress = asking.ask()
    assert (progress.left, progress.answered) == (0, ITEMS)
    each = ITEMS // 5
    assert progress.odd == {
        "cut": 3 * each,
        "empty": each,
        "refused": each,
        "thinking_unended": each,
        "without_temperature": 4 * each,
    }
