"""Replies of a process in which what the model wrote may have run: data, and checked."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coordinate_eval.errors import RecordError
from coordinate_eval.evaluators.confined.messages import (
    MOST_TIMEOUT_SECONDS,
    Command,
    LoggedSample,
    LoggedVerdict,
    Reply,
    Work,
    check_names,
    check_questions,
    check_samples,
    check_verdicts,
    read_reply,
)
from coordinate_eval.evaluators.confined.run_files import ResponseFiles
from coordinate_eval.evaluators.harness.code_eval import program_question
from coordinate_eval.evaluators.judged.prompts import (
    MOST_CHARACTERS,
    judge_question,
    question_of,
)
from coordinate_eval.records import Dataset, DatasetResults, Message, Question, Response, Rubric

EVIL = Dataset(name="evil")
COMMAND = Command(number=2, work=Work.FINISH, dataset=EVIL)


def results(**changes: object) -> DatasetResults:
    return DatasetResults.model_validate(
        {"dataset": "evil", "items": 1, "results": {}} | changes, extra="forbid"
    )


def test_the_reply_to_the_command_is_read() -> None:
    reply = Reply(number=2, results=results(results={"evil": {"acc,none": 1.0}}))
    assert read_reply(reply.line().encode(), COMMAND) == reply


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"Traceback\n",
        b"[]\n",
        b'{"number": 1}\n',
        b'{"number": 2}\n{"number": 2}\n',
        b'{"number": 2, "questions": [' + b"[" * 100_000,
        b'{"number": 2, "error": "\xff"}',
        *(
            b'{"number": 2, "results": {"dataset": "evil", "items": 1, "results": {}, %b}}' % more
            for more in (
                b'"judge": {"model": ["m"]}',
                b'"judge": {"odd": {"cut": "all"}}',
                b'"n_samples": {"evil": 5}',
                b'"outputs": {"responses": -1}',
            )
        ),
    ],
)
def test_anything_else_is_no_reply(said: bytes) -> None:
    with pytest.raises(RecordError, match="was disturbed"):
        read_reply(said, COMMAND)


def test_of_a_reply_with_questions_nothing_else_is_looked_at() -> None:
    asked = Command(number=2, work=Work.QUESTIONS, dataset=Dataset(name="evil"))
    question = program_question("print()", 1.0)
    said = Reply(number=2, questions=[question]).line()
    reply = read_reply(
        said.replace("}\n", ',"results":{"results":{"a":1,"b":1}}}\n').encode(), asked
    )
    assert reply == Reply(number=2, questions=[question])


@pytest.mark.parametrize("name", ["questions", "names"])
def test_a_list_of_anything_else_is_refused_at_its_first(name: str) -> None:
    said = f'{{"number": 2, "{name}": [{"1," * 10_000}1]}}'
    with pytest.raises(ValidationError) as caught:
        Reply.model_validate_json(said)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"results": {"evil": {}, "good": {}}},
        {"groups": {"good": {}}},
        {"versions": {"good": 1}},
        {"n_samples": {"good": {}}},
        {"dataset": "good"},
    ],
)
def test_no_reply_gives_scores_of_another_dataset(changes: dict[str, object]) -> None:
    check_names(results(results={"evil": {}, "evil/leaf": {}}), {"evil", "evil/leaf"}, EVIL)
    with pytest.raises(RecordError, match="scores of 'good'"):
        check_names(results(**changes), {"evil", "evil/leaf"}, EVIL)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, 2 * MOST_TIMEOUT_SECONDS])
def test_no_question_waits_for_ever(seconds: float) -> None:
    check_questions([program_question("pass", 3.0)], EVIL, "")
    with pytest.raises(RecordError, match="seconds"):
        check_questions([program_question("pass", seconds)], EVIL, "")


def test_no_question_has_the_id_of_another() -> None:
    question = program_question("pass", 3.0).model_copy(update={"content": "exit()"})
    with pytest.raises(RecordError, match="another one's id"):
        check_questions([question], EVIL, "")


JUDGED = Dataset(
    name="evil",
    rubric=Rubric(name="r", prompts={"p": [Message(role="user", content="")]}, patterns=["(.)"]),
)


def _asked(judge: str = "m@1", **changes: object) -> Question:
    assert JUDGED.rubric is not None
    right = judge_question("", JUDGED.rubric, [Message(role="user", content="?")])
    return question_of(judge, json.dumps(json.loads(right.content) | changes))


def test_a_rubric_asks_its_judge() -> None:
    check_questions([_asked()], JUDGED, "m@1")


@pytest.mark.parametrize(
    "question",
    [
        program_question("exit()", 3.0),
        _asked("another"),
        _asked().model_copy(update={"id": "0" * 64}),
        _asked(temperature=1.0),
        _asked(max_tokens=10**6),
        _asked(tools=[]),
        _asked(messages=[]),
        _asked(messages=[{"role": "system", "content": "?"}]),
        _asked(messages=[{"role": "user", "content": "?", "name": "root"}]),
        _asked(messages=[{"role": "user", "content": "?" * (MOST_CHARACTERS + 1)}]),
        question_of("m@1", "no JSON"),
    ],
)
def test_a_judge_is_asked_nothing_else(question: Question) -> None:
    with pytest.raises(RecordError, match="judge"):
        check_questions([question], JUDGED, "m@1")


def test_a_metric_without_a_rubric_asks_no_judge() -> None:
    with pytest.raises(RecordError, match="seconds"):
        check_questions([_asked()], EVIL, "m@1")


def test_a_copy_is_read_from_its_beginning_each_time_and_never_written(tmp_path: Path) -> None:
    files = []
    for item, name in enumerate(("a", "b")):
        files.append(tmp_path / name)
        response = Response(
            dataset="d", item=item, task="d", doc=item, index=0, prompt_hash="p", text=name,
            tokens=1, finish="stop",
        )  # fmt: skip
        files[-1].write_text(response.line())
    with ResponseFiles(tuple(files)).copied() as descriptor:
        copy = ResponseFiles(copy=descriptor)
        assert [response.text for response in copy] == ["a", "b"]
        assert [response.text for response in copy] == ["a", "b"]
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
        with pytest.raises(PermissionError):
            os.write(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR), b"x")
    gone = ResponseFiles((tmp_path / "gone",))
    with pytest.raises(FileNotFoundError, match="gone"), gone.copied():
        pass


SAMPLE: dict[str, Any] = {
    "doc_id": 0, "doc": {"q": 1}, "target": "t", "arguments": {"gen_args_0": {"arg_0": "p"}},
    "resps": [["r"]], "filtered_resps": ["r"], "filter": "none", "metrics": ["acc"],
    "doc_hash": "d", "prompt_hash": "p", "target_hash": "t", "acc": 1.0,
}  # fmt: skip


def _check_sample(content: str, **changes: Any) -> None:
    verdict = LoggedVerdict(item=3, task="evil", filter="none", metrics={}, doc_hash="")
    told = {"item": 3, "task": "evil", "words": [], "content": content} | changes
    check_samples([LoggedSample.model_validate(told, extra="forbid")], [verdict], EVIL)


def test_samples_are_those_that_were_asked_for_and_the_harness_s() -> None:
    _check_sample(json.dumps(SAMPLE))
    for changes in ({"item": 4}, {"task": "other"}):
        with pytest.raises(RecordError, match="told of other samples"):
            _check_sample(json.dumps(SAMPLE), **changes)
    lacking = {name: value for name, value in SAMPLE.items() if name != "resps"}
    deep = json.dumps(SAMPLE)[:-1] + ', "more": ' + "[" * 10_000 + "]" * 10_000 + "}"
    for content in ("", "[]", json.dumps(lacking), json.dumps(SAMPLE | {"target": 7}), deep):
        with pytest.raises(RecordError, match="is not one of the harness's"):
            _check_sample(content)


def test_verdicts_concern_the_dataset_alone() -> None:
    verdict = LoggedVerdict(item=0, task="other", filter="none", metrics={}, doc_hash="")
    check_verdicts([verdict], {"other"}, EVIL)
    with pytest.raises(RecordError, match="told of 'other'"):
        check_verdicts([verdict], {"evil"}, EVIL)


def test_of_a_reply_with_samples_nothing_else_is_read() -> None:
    asked = COMMAND.model_copy(update={"work": Work.SAMPLES})
    many = ",".join(["{}"] * 10)
    said = f'{{"number": 2, "questions": [{many}], "results": 7, "samples": []}}'
    assert read_reply(said.encode(), asked) == Reply(number=2)
