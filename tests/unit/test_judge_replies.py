"""What a judge's server may answer: parameters it refuses, words in parts, none, or odd ones."""

import json
from typing import Any

import pytest
from tests.judges import Judge, Reply, ask, fails, says, text_of

from coordinate_eval.errors import ServerRefuses
from coordinate_eval.evaluators.servers import connection

LONG = says("x" * 1_000_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once."""
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(connection, "MOST_PAUSE_SECONDS", 0.002)


@pytest.mark.parametrize("known", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_an_answer_has_the_name_that_the_server_knows(known: str) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        if known in body:
            return says("ok")
        return fails(400, f"Unsupported parameter: 'max_tokens'. Use '{known}' instead.")

    with Judge(behave) as server:
        answers = ask(server, *map(str, range(20)), concurrency=1)
    assert all(answer.passed for answer in answers)
    assert len(server.asked) - 20 == (known != "max_tokens")


REFUSALS = [
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) "
    "value is supported.",
    "Unsupported parameter: 'temperature' is not supported with this model.",
    "invalid temperature: only 1 is allowed for this model",
    "`temperature` is deprecated for this model.",
    "`temperature` may only be set to 1 when thinking is enabled.",
    "litellm.UnsupportedParamsError: gpt-5 models (including gpt-5-codex) don't support "
    "temperature=0.0. Only temperature=1 is supported. To drop unsupported params set "
    "`litellm.drop_params = True`",
    "litellm.BadRequestError: " + "Error from a provider. " * 20 + "temperature is not supported",
    "Input validation error: `temperature` must be strictly positive",
    "Temperature should be in (0.0, 2.0)",
    "property 'temperature' is unsupported",
    "Malformed input request: extraneous key [temperature] is not permitted",
    "temperature 参数非法。取值范围 (0,1)",
    json.dumps([{"type": "extra_forbidden", "loc": ["body", "temperature"],
                 "msg": "Extra inputs are not permitted"}]),
]  # fmt: skip
"""Words of servers whose model has a temperature of its own."""


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("said", REFUSALS)
def test_a_judge_with_a_fixed_temperature_is_asked_without(said: str, status: int) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        return fails(status, said) if "temperature" in body else says("ok")

    with Judge(behave) as server:
        answers = ask(server, *map(str, range(20)), concurrency=1)
    assert all(answer.passed for answer in answers)
    assert {tuple(answer.without) for answer in answers} == {("temperature",)}
    assert len(server.asked) == 21


@pytest.mark.parametrize("inside", [False, True])
def test_a_server_may_refuse_several_parameters_one_by_one(*, inside: bool) -> None:
    """It may name them in a field of their own, or say 200 around the error."""

    def behave(body: dict[str, Any], number: int) -> Reply:
        known = ("model", "messages")
        if not (odd := [name for name in body if name not in known]):
            return says("[[8]]")
        error = {
            "message": f"Unrecognized request argument: {odd[0]}",
            "param": odd[0],
            "code": 400,
        }
        return Reply(status=200 if inside else 400, body=json.dumps({"error": error}).encode())

    with Judge(behave) as server:
        answers = ask(server, *map(str, range(9)))
    assert {answer.result for answer in answers} == {"[[8]]"}
    assert {tuple(answer.without) for answer in answers} == {("max_tokens", "temperature")}
    assert len(server.asked) <= 9 * 4


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("max_tokens is too large: 64. This model supports at most 32 completion tokens", "asked"),
        ("max_tokens: 64 > 32, which is the maximum allowed number of output tokens", "asked"),
        ("max_tokens must be at most 32", ServerRefuses),
        ("Conversation roles must alternate; System role not supported", ServerRefuses),
        ("at this temperature of the room no question is answered", ServerRefuses),
    ],
)
def test_other_refusals_cost_no_parameter(said: str, error: Any) -> None:
    with Judge(lambda *_: fails(400, said)) as server:
        if error is ServerRefuses:
            with pytest.raises(ServerRefuses):
                ask(server, "a")
        else:
            assert not ask(server, "a")[0].passed
    assert [body.keys() for body in server.asked] == [
        {"model", "messages", "temperature", "max_tokens"}
    ]


HM = {"type": "text", "text": "Hm. [[3]]"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"type": "text", "text": "Good. "}, {"type": "text", "text": "[[8]]"}], "Good. [[8]]"),
        ([{"type": "thinking", "thinking": [HM]}, {"type": "text", "text": "[[8]]"}], "[[8]]"),
        ([{"type": "reasoning", "text": "[[3]]"}, {"type": "text", "text": "[[8]]"}], "[[8]]"),
        ([{"type": "output_text", "text": "[[8]]"}], "[[8]]"),
        ([{"type": "image_url"}, {"type": "text", "text": "[[8]]"}, None, 5], "[[8]]"),
        (["[[8]]"], "[[8]]"),
        ([{"text": "[[8]]"}], "[[8]]"),
        ({"type": "text", "text": "[[8]]"}, "[[8]]"),
        ([{"type": "thinking", "thinking": [HM]}], ""),
    ],
)
def test_an_answer_may_come_in_parts(content: object, words: str) -> None:
    with Judge(lambda *_: says(content)) as server:
        (answer,) = ask(server, "a")
    assert (answer.passed, answer.result, len(server.asked)) == (True, words, 1)


def says_nothing(finish: str = "stop", **message: object) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return Reply(body=json.dumps({"choices": [choice]}).encode())


@pytest.mark.parametrize(
    ("reply", "passed", "result", "cut"),
    [
        (says_nothing("length", content=None, reasoning_content="[[3]]"), True, "", True),
        (says_nothing("length", content=None, reasoning="[[3]]"), True, "", True),
        (says_nothing("MAX_TOKENS"), True, "", True),
        (says("[[8]] and", finish_reason="model_length"), True, "[[8]] and", True),
        (Reply(body=b'{"choices": [{"finish_reason": "length"}]}'), True, "", True),
        (
            fails(400, "Could not finish the message because max_tokens or model output limit was "
                  "reached. Please try again with higher max_tokens."),
            True, "", True,
        ),
        (says_nothing(content=None, reasoning_content="[[3]]"), True, "", False),
        (says_nothing(content=None, reasoning_details=[{"text": "[[3]]"}]), True, "", False),
        (says_nothing(content=None, refusal="I will not."), False, "refused: I will not.", False),
        (
            says_nothing(content=[{"type": "refusal", "refusal": "I will not."}]),
            False, "refused: I will not.", False,
        ),
        (says_nothing("tool_calls", content=None, tool_calls=[{}]), False, "calls a tool", False),
        (says_nothing("content_filter"), False, "content filter", False),
        (says_nothing("SAFETY", content=None), False, "content filter", False),
        (says_nothing("refusal", content=""), False, "content filter", False),
        (says("cut off", finish_reason="length"), True, "cut off", True),
    ],
)  # fmt: skip
def test_an_answer_without_words_is_one(reply: Reply, passed: bool, result: str, cut: bool) -> None:
    with Judge(lambda *_: reply) as server:
        (answer,) = ask(server, "a")
    assert (answer.passed, answer.cut, len(server.asked)) == (passed, cut, 1)
    assert answer.result == result or (result and result in answer.result)


@pytest.mark.parametrize(
    "odd",
    [
        says(None),
        says([]),
        says([{"type": "image_url"}]),
        says(5),
        says("Rating: [[", finish_reason="error"),
        Reply(body=b'{"choices": []}'),
        Reply(body=b'{"choices": [{"index": 0, "finish_reason": "stop"}]}'),
        LONG,
    ],
)
def test_an_odd_answer_is_not_asked_for_for_ever(odd: Reply) -> None:
    with Judge(lambda *_: odd) as server:
        (answer,) = ask(server, "a", patience_seconds=1e6)
    assert not answer.passed
    assert answer.result.startswith("refused: ")
    assert len(server.asked) == connection.MOST_ODD


def test_thinking_that_a_template_began_and_the_limit_ended_is_no_answer() -> None:
    """Only other answers tell that it is thinking: the template has its beginning."""
    whole, cut = says("Hm, [[3]]?</think>\n[[8]]"), says("Is it [[3]]?", finish_reason="length")
    with Judge(lambda body, _: whole if text_of(body) == "a" else cut) as server:
        answers = ask(server, "a", "b", "c", concurrency=1)
    assert [answer.result for answer in answers][1:] == ["<think>Is it [[3]]?"] * 2
    with Judge(lambda *_: cut) as server:
        (answer,) = ask(server, "b")
    assert answer.result == "Is it [[3]]?"
