"""Answers with which a judge compares others: files of several shapes, and runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.run_dirs import write_index

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.work import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.starting import baselines
from coordinate_eval.coordinator.supervisor.refused import refuse
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged.baselines import BaselineAnswer, read_baseline
from coordinate_eval.records import (
    Asked,
    Dataset,
    ItemRequests,
    Message,
    RequestKind,
    Response,
    Rubric,
    Shard,
    Suite,
    Turn,
)

RUBRIC = Rubric(
    name="r",
    prompts={"better": [Message(role="user", content="{{ answer_a }} {{ answer_b }}")]},
    pair=True,
    id="id",
    patterns=["(A|B)"],
    labels={"A": [1], "B": [0]},
)
PAIR = Dataset(name="p", task="t", rubric=RUBRIC)


@pytest.mark.parametrize(
    "line",
    [
        {"id": "7", "answer": "yes"},
        {"id": 7, "answers": ["yes"]},
        {"uid": "7", "answer": "yes", "model": "m"},
        {"question_id": 7, "choices": [{"index": 0, "turns": ["yes"]}]},
        {"question_id": "7", "choices": [{"turns": [{"content": "yes", "token_len": 1}]}]},
        {
            "uid": "7",
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": {"answer": "yes"}},
            ],
        },
        {"uid": "7", "messages": [{"role": "assistant", "content": "yes"}]},
    ],
)
def test_an_answer_has_one_of_several_shapes(line: dict[str, Any]) -> None:
    (found,) = read_baseline([json.dumps(line), ""], "b.jsonl")
    assert found == BaselineAnswer(id="7", answers=["yes"])


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[1]",
        "{}",
        '{"answer": "yes"}',
        '{"id": null, "answer": "yes"}',
        '{"id": [1], "answer": "yes"}',
        '{"id": 1}',
        '{"id": 1, "answer": 2}',
        '{"id": 1, "answers": []}',
        '{"id": 1, "answers": 3}',
        '{"id": 1, "messages": []}',
        '{"id": 1, "messages": [{"role": "assistant", "content": {}}]}',
        '{"id": 1, "choices": []}',
        "[" * 100_000,
        r'{"id": 1, "answer": "\ud800"}',
    ],
)
def test_anything_else_is_named_with_its_line(line: str) -> None:
    with pytest.raises(UserError, match=r"^baseline b\.jsonl, line 2: it needs an id"):
        read_baseline(['{"id": 0, "answer": ""}', line], "b.jsonl")


def test_two_answers_to_a_question_are_refused() -> None:
    line = '{"id": 0, "answer": ""}'
    with pytest.raises(UserError, match="line 2: a second answer to '0'"):
        read_baseline([line, line], "b.jsonl")


def _run(baseline: Path, dataset: Dataset = PAIR) -> Run:
    judge = {"checkpoint": "/judge", "model": "m", "baseline": str(baseline)}
    suite = Suite(name="s", digest="d", datasets=[dataset])
    return make_run(suite=suite, shards=[], settings=Settings.model_validate({"judge": judge}))


def test_a_file_is_copied_into_the_run(tmp_path: Path) -> None:
    file, run_dir = tmp_path / "b.jsonl", RunDir(tmp_path / "run")
    run_dir.root.mkdir()
    file.write_text('{"uid": "a", "answer": "x"}\n{"uid": "b", "answer": "y\u2028z"}\n')
    baselines.write(run_dir, _run(file))
    file.unlink()
    assert baselines.why_incomplete(run_dir, "p", ["a", "b"]) == ""
    why = baselines.why_incomplete(run_dir, "p", ["a", "c", "d", "e", "f"])
    assert "no answer to 4 of 5 questions: c, d, e and others" in why


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_stops_the_run_from_coming_to_be(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "b.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"baseline .*b\.jsonl cannot be read"):
        baselines.write(RunDir(tmp_path), _run(tmp_path / "b.jsonl"))


def _index(run_dir: RunDir, ids: list[str], items: int | None = None) -> None:
    made = {"generate_requests": 1, "asks": True, "judged": True, "question_ids": ids}
    write_index(run_dir, "p", items or len(ids), **made)


def test_a_dataset_without_all_of_its_baseline_is_given_up(tmp_path: Path) -> None:
    file, run_dir = tmp_path / "b.jsonl", RunDir(tmp_path / "run")
    run_dir.root.mkdir()
    file.write_text('{"uid": "a", "answer": "x"}\n')
    run = _run(file)
    baselines.write(run_dir, run)
    _index(run_dir, ["a"])
    assert refuse(run_dir, run) == []
    _index(run_dir, ["a", "b"])
    (said,) = refuse(run_dir, run)
    assert said.startswith("not run: p. The baseline lacks answers")
    assert given_up(run_dir) == {"p"}
    assert "1 of 2 questions: b" in run_dir.dataset_error("p").read_text()


def test_another_run_is_a_baseline(tmp_path: Path) -> None:
    """Its answers are cut as they were scored there, and those that it lacks are missing."""
    old, new = RunDir(tmp_path / "old"), RunDir(tmp_path / "new")
    new.root.mkdir()
    dataset = PAIR.model_copy(update={"think_end_token": "</think>"})
    shards = [
        Shard(dataset="p", start=n, stop=n + 1, gpu_seconds=1, metric_cpu_seconds=0)
        for n in range(2)
    ]
    run = _run(tmp_path, dataset).model_copy(update={"shards": shards})
    _files.write_record(old.run, run)
    _index(old, ["a", "b"])
    asked = Asked(prompt_hash="h", kind=RequestKind.GENERATE, stop=["END"])
    items = [
        ItemRequests(item=n, task="t", doc=n, contexts=[[1]], requests=[asked]) for n in range(2)
    ]
    _files.write(old.requests("p"), "".join(item.line() for item in items))
    response = Response(
        dataset="p", item=0, task="t", doc=0, prompt_hash="h", tokens=1, finish="stop",
        text="hm END hm</think> one END two", turns=[Turn(text="three", tokens=1, finish="stop")],
    )  # fmt: skip
    _files.write(old.published("outputs", shards[0].span), response.line())
    baselines.write(new, _run(old.root, dataset))
    (line,) = new.baseline("p").read_text().splitlines()
    assert BaselineAnswer.model_validate_json(line).answers == ["one ", "three"]
    assert "1 of 2 questions: b" in baselines.why_incomplete(new, "p", ["a", "b"])
    other = dataset.model_copy(update={"task": "u"})
    with pytest.raises(UserError, match="has no dataset p with this task"):
        baselines.write(RunDir(_made(tmp_path / "third")), _run(old.root, other))
    with pytest.raises(UserError, match="no run directory"):
        baselines.write(RunDir(_made(tmp_path / "fourth")), _run(_made(tmp_path / "empty")))


def test_a_run_that_nobody_judged_is_a_baseline_by_the_positions_of_items(tmp_path: Path) -> None:
    old, new = RunDir(tmp_path / "old"), RunDir(_made(tmp_path / "new"))
    shard = Shard(dataset="p", start=0, stop=2, gpu_seconds=1, metric_cpu_seconds=0)
    plain = Dataset(name="p", task="t")
    _files.write_record(old.run, _run(tmp_path, plain).model_copy(update={"shards": [shard]}))
    _index(old, [], items=2)
    asked = Asked(prompt_hash="h", kind=RequestKind.GENERATE)
    lines = (
        ItemRequests(item=n, task="t", doc=n, contexts=[[1]], requests=[asked]).line()
        for n in range(2)
    )
    _files.write(old.requests("p"), "".join(lines))
    said = (
        Response(
            dataset="p", item=n, task="t", doc=n, prompt_hash="h", tokens=1, finish="stop",
            text=f"answer {n}",
        ).line()
        for n in range(2)
    )  # fmt: skip
    _files.write(old.published("outputs", shard.span), "".join(said))
    run = _run(old.root)
    baselines.write(new, run)
    _index(new, ["a", "b", "c"])
    assert "3 of 3 questions" in (refuse(new, run), new.dataset_error("p").read_text())[1]
    new.dataset_error("p").unlink()
    _index(new, ["a", "b"])
    assert refuse(new, run) == refuse(new, run) == []
    found = [BaselineAnswer.model_validate_json(line) for line in new.baseline("p").open()]
    assert [(each.id, each.answers) for each in found] == [("a", ["answer 0"]), ("b", ["answer 1"])]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
