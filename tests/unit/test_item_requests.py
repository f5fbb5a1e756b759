"""The requests of an item are stored together, and read as they were."""

from typing import Any

from coordinate_eval.records import ItemRequests, Request, RequestKind

KEY: dict[str, Any] = {"dataset": "d", "item": 3, "task": "t", "doc": 1}
CONTEXT, OTHER = [7, 8, 9], [7, 8]


def scored(index: int, tokens: list[int]) -> Request:
    return Request(
        **KEY, index=index, prompt_hash=f"{index}", kind=RequestKind.LOGLIKELIHOOD,
        tokens=tokens, continuation=[index],
    )  # fmt: skip


def written(repeat: int) -> Request:
    return Request(
        **KEY, index=5, repeat=repeat, prompt_hash="h", kind=RequestKind.GENERATE, tokens=OTHER,
        max_tokens=9, stop=["\n"], sampling={"temperature": 0.5},
    )  # fmt: skip


def test_requests_are_read_as_they_were() -> None:
    asked = [scored(0, [*CONTEXT]), scored(1, [*CONTEXT]), scored(2, OTHER), scored(3, [])]
    asked += [written(0), written(1)]
    line = ItemRequests.of(asked).line()
    read = list(ItemRequests.model_validate_json(line).of_dataset("d"))
    assert read == asked
    assert [request.model_dump_json() for request in read] == [r.model_dump_json() for r in asked]


def test_a_context_is_stored_and_read_once() -> None:
    item = ItemRequests.of([scored(n, [*CONTEXT]) for n in range(4)])
    assert item.contexts == [CONTEXT]
    first, *others = ItemRequests.model_validate_json(item.line()).of_dataset("d")
    assert all(other.tokens is first.tokens for other in others)
