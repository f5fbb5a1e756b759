"""The client of a judge, against a server that misbehaves."""

import asyncio
import email.utils
import gzip
import json
import time
import tracemalloc
from typing import Any
from urllib.parse import quote

import pytest
from tests.judges import Judge, Reply, ask, fails, first, question, says, text_of
from tests.runs import PATIENCE_SECONDS

from coordinate_eval.errors import ServerRefuses, ServerSilent, UserError
from coordinate_eval.evaluators.judged.endpoint import Endpoint, is_question
from coordinate_eval.evaluators.servers import connection, replies
from coordinate_eval.evaluators.servers.access import Access

KEY = "sk-a-secret"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once."""
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(connection, "MOST_PAUSE_SECONDS", 0.002)


def test_a_question_is_sent_as_it_is_and_the_words_come_back() -> None:
    with Judge() as server:
        (answer,) = ask(server, "Rate this.")
    (body,) = server.asked
    assert body == {
        "model": "judge",
        "messages": [{"role": "user", "content": "Rate this."}],
        "temperature": 0.0,
        "max_tokens": 64,
    }
    assert (answer.id, answer.passed, answer.result) == (question("Rate this.").id, True, "[[5]]")
    assert answer.tokens == 15


LONG = says("x" * 1_000_000)


@pytest.mark.parametrize(
    "wrong",
    [
        fails(429, "slow down"),
        fails(429, "slow down", retry_after="0"),
        fails(500, "broken"),
        fails(503),
        fails(529),
        Reply(drops=True),
        Reply(body=says("[[1]]").body[:40], claims_bytes=500),
        Reply(body=b"<html>a proxy's page</html>"),
        Reply(body=b"\xff\xfe\x00 garbage"),
        Reply(body=b"[" * 100_000),
        Reply(body=b""),
        Reply(body=b'{"choices": []}'),
        Reply(body=b'{"choices": [{"message": null}]}'),
        Reply(body=b'{"error": {"message": "no worker is free"}}'),
        says(None),
        says([{"type": "text"}]),
        LONG,
    ],
)
def test_what_is_no_answer_is_asked_again(wrong: Reply) -> None:
    with Judge(first(wrong)) as server:
        (answer,) = ask(server, "Rate this.")
    assert (answer.passed, answer.result) == (True, "[[7]]")
    assert len(server.asked) == 3


def test_what_is_too_late_is_asked_again() -> None:
    with Judge(first(Reply(body=says("late").body, after_seconds=1e6))) as server:
        (answer,) = ask(server, "Rate this.", timeout_seconds=0.3)
    assert (answer.passed, answer.result) == (True, "[[7]]")
    assert len(server.asked) >= 3


def test_an_answer_may_be_empty_or_cut_by_its_limit() -> None:
    replies = [says(""), says(None, finish_reason="length")]
    with Judge(lambda body, number: replies[number]) as server:
        for text in ("a", "b"):
            (answer,) = ask(server, text)
            assert (answer.passed, answer.result) == (True, "")


def test_half_a_character_does_not_keep_an_answer_from_being_written() -> None:
    body = rb'{"choices": [{"message": {"content": "\ud800 [[3]]"}}]}'
    with Judge(lambda *_: Reply(body=body)) as server:
        (answer,) = ask(server, "a")
    assert "[[3]]" in json.loads(answer.line())["result"]
    assert answer.tokens > 0, "a server that does not count tokens is not free"


@pytest.mark.parametrize(
    "reply",
    [
        fails(400, "This model's maximum context length is 2048 tokens. However, you requested"),
        fails(400, "'max_tokens' is too large: 64. This model's maximum context length is 32"),
        fails(400, "The response was filtered by the content management policy."),
        fails(403, "Your input was flagged by moderation"),
        fails(413, "too large"),
        fails(422, "cannot be processed"),
        says("", finish_reason="content_filter"),
    ],
)
def test_a_question_that_is_never_answered_has_an_answer_that_says_so(reply: Reply) -> None:
    with Judge(lambda *_: reply) as server:
        (answer,) = ask(server, "a")
    assert not answer.passed
    assert answer.result.startswith("refused: ")
    assert answer.result.isprintable()
    assert len(answer.result) < 500
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (fails(401), "api_key_env"),
        (fails(403), "api_key_env"),
        (fails(404, "The model `judge` does not exist"), "no model 'judge'"),
        (fails(400, "model_not_found"), "no model 'judge'"),
        (fails(400, "temperature must be 1\x1b[2J" + "!" * 10_000), "temperature must be 1"),
        (fails(400, "max_tokens must be at most 32"), "at most 32"),
        (fails(402, "pay first"), "pay first"),
        (fails(307, location="http://other.example/v1"), "http://other.example/v1"),
    ],
)
def test_what_holds_for_all_questions_ends_all(reply: Reply, words: str) -> None:
    with Judge(lambda *_: reply) as server, pytest.raises(ServerRefuses) as caught:
        ask(server, "a", key=KEY)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_the_key_is_in_one_header_and_in_no_text() -> None:
    echo = says(f"the key is {KEY}")
    with Judge(lambda body, number: echo, key=KEY) as server:
        (answer,) = ask(server, "a", key=KEY)
        assert server.headers[-1]["authorization"] == f"Bearer {KEY}"
        with pytest.raises(ServerRefuses) as caught:
            ask(server, "a", key=KEY + "-of-another")
    assert KEY not in answer.result
    assert KEY not in str(caught.value)
    assert KEY not in repr(Access(server.url, "judge", KEY))


ODD_KEY = 'sk/odd"key-0123456789'


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=302, headers={"Location": f"https://other/?key={ODD_KEY}"}),
        Reply(status=302, headers={"Location": f"https://other/{quote(ODD_KEY, safe='')}"}),
        fails(404, f"you sent {ODD_KEY}"),
        fails(500, json.dumps({"message": f"you sent {ODD_KEY}"})),
        Reply(status=500, body=ODD_KEY.replace("/", r"\/").encode()),
        Reply(status=500, body="".join(f"\\u{ord(each):04X}" for each in ODD_KEY).encode()),
        Reply(headers={f"no header {ODD_KEY}": "x"}),
        says(f"you sent {ODD_KEY}"),
        says(None, refusal=f"you sent {ODD_KEY}"),
    ],
)
def test_a_server_that_repeats_the_key_gets_it_into_no_text(reply: Reply) -> None:
    with Judge(lambda *_: reply) as server:
        try:
            (answer,) = ask(server, "a", key=ODD_KEY, patience_seconds=0.0)
            said = answer.result
        except (ServerRefuses, ServerSilent) as error:
            said = str(error)
    assert "0123456789" not in said
    assert ODD_KEY[:8] not in said


def test_a_key_that_is_a_usual_word_changes_no_answer() -> None:
    with Judge(lambda *_: says("none of it: [[1]]")) as server:
        (answer,) = ask(server, "a", key="none")
    assert answer.result == "none of it: [[1]]"


def test_a_compressed_answer_is_read_as_far_as_others() -> None:
    named = {"Content-Encoding": "gzip"}
    small = Reply(body=gzip.compress(says("[[3]]").body), headers=named)
    large = Reply(body=gzip.compress(says("3" * 50_000_000).body), headers=named)
    twice = {"Content-Encoding": "gzip, gzip"}
    larger = Reply(body=gzip.compress(large.body), headers=twice)
    with Judge(lambda body, number: [large, larger, small][number]) as server:
        tracemalloc.start()
        (answer,) = ask(server, "a")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert answer.result == "[[3]]"
    assert most < 5_000_000


def test_a_server_keeps_nothing_with_us() -> None:
    cookie = says("[[3]]")
    cookie.headers["Set-Cookie"] = "big=" + "x" * 4000
    with Judge(lambda *_: cookie) as server:
        ask(server, "a", "b", concurrency=1)
    assert not any("cookie" in headers for headers in server.headers)


def test_another_host_never_gets_the_key() -> None:
    with Judge() as thief:
        moved = fails(308, location=f"{thief.url}/chat/completions")
        with Judge(lambda *_: moved) as server, pytest.raises(ServerRefuses):
            ask(server, "a", key=KEY)
    assert thief.headers == []


def test_a_judge_that_stays_away_is_given_up_after_the_patience() -> None:
    with Judge() as server:
        pass
    with pytest.raises(ServerSilent, match=r"connection refused at http://127\.0\.0\.1"):
        ask(server, "a", patience_seconds=0.2)


def test_one_hopeless_question_does_not_keep_others_from_their_answers() -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        return fails(500, "bad luck") if text_of(body) == "bad" else says("[[5]]")

    async def main() -> None:
        async with Endpoint(Access(server.url, "judge"), patience_seconds=0.3) as judge:
            with pytest.raises(ServerSilent, match="bad luck"):
                await asyncio.gather(judge.ask(question("bad")), good(judge))

    async def good(judge: Endpoint) -> None:
        for number in range(10**6):
            await judge.ask(question(f"good {number}"))
            await asyncio.sleep(0.01)

    with Judge(behave) as server:
        asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS))


def test_the_server_says_how_long_to_wait() -> None:
    later = email.utils.formatdate(time.time() + 110, usegmt=True)
    assert 0 < (replies.retry_after(later) or 0) <= 110
    assert replies.retry_after("1.5") == 1.5
    assert replies.retry_after(email.utils.formatdate(0, usegmt=True)) == 0
    for nonsense in ("", "soon", "-1", "nan", "1e9", "Mon, 99 Foo 2026 99:99:99 GMT"):
        assert replies.retry_after(nonsense) is None
    with Judge(first(fails(429, retry_after="0.4"), 1)) as server:
        began = time.monotonic()
        ask(server, "a")
    assert time.monotonic() - began >= 0.4


def test_fewer_questions_are_asked_at_once_while_the_server_is_busy() -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        reply = says("ok") if server.at_once <= 2 else fails(429)
        reply.after_seconds = 0.01
        return reply

    with Judge(behave) as server:
        answers = ask(server, *map(str, range(60)), concurrency=16)
    assert all(answer.passed for answer in answers)
    refused = len(server.asked) - len(answers)
    # It is half an answer's, and seven answers' if sixteen are sent all the time.
    assert refused < 3 * len(answers), "most questions were sent when there was room"


def test_no_question_is_begun_while_the_server_wants_none() -> None:
    began: list[float] = []

    def behave(body: dict[str, Any], number: int) -> Reply:
        began.append(time.monotonic())
        return fails(429, retry_after="0.3") if number == 0 else says("ok")

    async def main() -> None:
        async with Endpoint(Access(server.url, "judge"), concurrency=8) as judge:
            first = asyncio.create_task(judge.ask(question("first")))
            while not judge.is_failing:
                await asyncio.sleep(0.001)
            others = (judge.ask(question(str(number))) for number in range(8))
            await asyncio.gather(first, *others)

    with Judge(behave) as server:
        asyncio.run(main())
    assert min(began[1:]) - began[0] >= 0.3


def check(server: Judge, key: str = "") -> int | None:
    async def main() -> int | None:
        async with Endpoint(Access(server.url, "judge", key)) as judge:
            return await judge.check()

    return asyncio.run(main())


def test_a_check_asks_for_the_list_of_models_and_nothing_else() -> None:
    with Judge(models=["other", "judge"], key=KEY) as server:
        check(server, KEY)
        with pytest.raises(ServerRefuses, match="api_key_env"):
            check(server, "wrong")
    assert server.asked == []
    with (
        Judge(models=["other"]) as server,
        pytest.raises(ServerRefuses, match=r"no model 'judge'.*it has other"),
    ):
        check(server)


@pytest.mark.parametrize(
    ("told", "found"), [(4096, 4096), (None, None), ("4096", None), (True, None), ([], None)]
)
def test_a_check_returns_the_context_of_a_server_that_tells_it(told: object, found: object) -> None:
    with Judge(models=["judge"], context=told) as server:
        assert check(server) == found


def test_a_check_of_a_server_without_a_list_is_one_short_question() -> None:
    with Judge() as server:
        check(server)
    assert [body["max_tokens"] for body in server.asked] == [16]
    with Judge(lambda *_: fails(404, "no such model")) as server, pytest.raises(ServerRefuses):
        check(server)
    with Judge(lambda *_: fails(500)) as server, pytest.raises(ServerSilent):
        check(server)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("host:8000/v1", "no address"),
        ("ftp://host/v1", "no address"),
        ("http://", "no address"),
        ("http://[::1/v1", "no address"),
        ("http://host/v1?key=secret", "path"),
        ("http://me:secret@host/v1", "password"),
    ],
)
def test_an_address_is_checked(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Access.of(url, "judge", None, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [None, "", " ", "two words", "ümlaut", "a\nb"])
def test_a_key_that_is_none_is_refused_without_being_shown(value: str | None) -> None:
    environ = {} if value is None else {"KEY": value}
    with pytest.raises(UserError, match="environment variable KEY") as caught:
        Access.of("http://host/v1", "judge", "KEY", environ)
    assert not value or not value.strip() or value not in str(caught.value)


def test_only_what_is_a_question_to_this_judge_is_asked() -> None:
    good = question("a")
    assert is_question(good, "judge")
    assert not is_question(good, "another")
    assert not is_question(good.model_copy(update={"content": "{}"}), "judge")
    assert not is_question(question("a", max_tokens=0), "judge")
    assert not is_question(question("a", max_tokens=10**9), "judge")
