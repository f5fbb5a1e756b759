"""The fake engine: an answer to every request, the same each time, and faults on demand."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.evaluators.engines.common import probe
from coordinate_eval.evaluators.engines.simulated import SimulatedEngine
from coordinate_eval.records import Request, RequestKind, Response


def ask(number: int, **fields: object) -> Request:
    kind = RequestKind.GENERATE if number % 2 else RequestKind.LOGLIKELIHOOD
    asked = {"max_tokens": 30} if number % 2 else {"continuation": [number, 2]}
    return probe(kind, [1, number], **{"item": number} | asked | fields)


def answers(requests: list[Request], **args: object) -> dict[int, Response]:
    return {r.item: r for r in SimulatedEngine(args=args).run(iter(requests))}


@given(st.integers(0, 100), st.integers(1, 40))
def test_answers_every_request_once_in_any_window(count: int, concurrency: int) -> None:
    engine = SimulatedEngine(args={"concurrency": concurrency})
    responses = list(engine.run(iter([ask(n) for n in range(count)])))
    assert sorted(r.item for r in responses) == list(range(count))


def test_an_answer_depends_on_the_prompt_and_not_on_the_company() -> None:
    requests = [ask(n) for n in range(50)]
    whole = answers(requests)
    parts = answers(requests[:20], concurrency=3) | answers(requests[20:][::-1], concurrency=1)
    assert whole == parts
    assert len({r.text for r in whole.values()}) > 20


def test_answers_look_like_an_engines() -> None:
    responses = answers([ask(n) for n in range(200)])
    scored = [r for n, r in responses.items() if n % 2 == 0]
    written = [r for n, r in responses.items() if n % 2]
    assert all(r.logprob is not None and r.logprob < 0 and r.tokens == 2 for r in scored)
    assert {r.greedy for r in scored} == {True, False}
    assert all(r.text and r.logprob is None and r.finish == "stop" for r in written)


def test_a_text_ends_at_the_limit_of_its_request() -> None:
    response = answers([ask(n, max_tokens=1) for n in (1, 3, 5, 7, 9, 11)])
    assert all(r.tokens == 1 for r in response.values())
    assert "length" in {r.finish for r in response.values()}


def test_sampled_repeats_differ_and_greedy_ones_do_not() -> None:
    def texts(**fields: object) -> set[str | None]:
        requests = [ask(1, item=n, repeat=n, **fields) for n in range(8)]
        return {r.text for r in answers(requests).values()}

    assert len(texts()) == 1
    assert len(texts(sampling={"temperature": 0.8})) > 1


def test_fails_after_as_many_responses_and_not_before() -> None:
    run = SimulatedEngine(args={"fail_after": 3}).run(iter([ask(n) for n in range(10)]))
    assert len([next(run) for _ in range(3)]) == 3
    with pytest.raises(EngineError, match="3 responses"):
        next(run)


@pytest.mark.parametrize(("count", "before"), [(9, 1), (1, 0)])
def test_pauses_before_its_last_response_until_a_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, before: int
) -> None:
    file = tmp_path / "pause"
    file.touch()
    found: list[Response] = []
    looks = iter(range(3))

    def look(seconds: float) -> None:
        if seconds:  # it does not pretend to compute
            assert len(found) == before
            if next(looks, None) is None:
                file.unlink()

    monkeypatch.setattr(time, "sleep", look)
    for response in SimulatedEngine(args={"pause": str(file)}).run(iter(map(ask, range(count)))):
        found.append(response)
    assert sorted(response.item for response in found) == list(range(count))
    assert not file.exists()


def test_takes_the_times_of_a_file_for_the_datasets_in_it(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text('{"slow": {"seconds_per_request": 0.01, "floor_seconds": 0.1}}')
    slow = [ask(n, dataset="slow") for n in (0, 1, 2)]
    began = time.monotonic()
    engine = SimulatedEngine(args={"times": str(file), "start_seconds": 0.02})
    given = engine.run(iter([*slow, ask(3), ask(4)]))
    assert [(r.dataset, r.item) for r in given][2:] == [("slow", 1), ("slow", 2), ("slow", 0)]
    assert time.monotonic() - began >= 0.12


@pytest.mark.parametrize("content", [None, "[]", '{"d": {"seconds_per_request": -1}}', "{"])
def test_says_what_is_wrong_with_a_file_of_times(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "times.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=r"times\.json"):
        SimulatedEngine(args={"times": str(file)})


def test_a_closed_engine_refuses() -> None:
    engine = SimulatedEngine(args={})
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        next(engine.run(iter([ask(1)])))


@pytest.mark.parametrize(
    "args",
    [
        {"speed": 1},
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"concurrency": True},
        {"seconds_per_request": -1},
        {"seconds_per_request": "1"},
        {"start_seconds": float("nan")},
        {"start_seconds": None},
        {"fail_after": -1},
        {"fail_at": "d:1"},
        {"fail_at": [1]},
        {"pause": 1},
        {"times": 1},
    ],
)
def test_refuses_arguments_that_make_no_sense(args: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(args))):
        SimulatedEngine(args=args)


def test_what_is_unwanted_is_dropped_also_amid_an_answer(tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    times.write_text('{"slow": {"seconds_per_request": 1000}}')
    slow = [ask(n).model_copy(update={"dataset": "slow"}) for n in range(3)]
    engine, looks = SimulatedEngine(args={"times": str(times)}), iter(range(9))

    def unwanted() -> Callable[[Request], bool] | None:
        return (lambda request: request.dataset == "slow") if next(looks, 0) == 8 else None

    given = [slow[0], ask(1), *slow[1:], ask(2)]
    answers = list(engine.run(iter(given), unwanted))
    assert sorted(r.item for r in answers) == [1, 2]
