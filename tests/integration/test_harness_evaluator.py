"""Requests out, responses in: what an evaluator promises, on small tasks."""

import itertools
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from tests.evaluators import BOS, Evaluators, byte_tokenizer, evaluator_of, requests_of
from tests.own_tasks import write_task
from tests.runs import TASKS

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.prompts.language_models import Backend, RequestModel
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer
from coordinate_eval.evaluators.harness.tasks.made_from import data_sources
from coordinate_eval.records import Answer, Dataset, Request, RequestKind, Response


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("it's a tokenizer"))


@pytest.fixture
def evaluator(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluators:
    monkeypatch.chdir(TASKS)  # the tasks' data paths are relative, as the harness wants them
    return partial(evaluator_of, tokenizer)


def _answer(request: Request, text: str = "") -> Response:
    if request.kind is RequestKind.GENERATE:
        return respond(request, text=text, tokens=1, finish="stop")
    length = len(request.continuation)
    return respond(request, logprob=-length, greedy=False, tokens=length, finish="scored")


def _text(tokens: Sequence[int], tokenizer: Path) -> str:
    return str(load_tokenizer(tokenizer).decode(tokens))


def _lines(name: str) -> list[str]:
    return (TASKS / "data" / name).read_text().splitlines()


def alike_blocks(before: list[int], tokens: list[int]) -> int:
    """Tokens in the blocks of 16 at the beginning of both, but for the last token."""
    shared = 0
    while before[shared : shared + 16] == tokens[shared : shared + 16] and shared + 16 < len(
        tokens
    ):
        shared += 16
    return shared


def test_a_group_is_numbered_through_its_leaf_tasks(evaluator: Evaluators) -> None:
    requests: list[Request] = []
    built = evaluator().build(Dataset(name="tiny_group"), requests.append)
    assert (built.items, built.requests) == (18, 54)
    assert [(r.item, r.task, r.doc, r.index) for r in requests] == [
        (doc + offset, task, doc, index)
        for task, offset, docs in (("tiny_choice", 0, 12), ("tiny_short", 12, 6))
        for doc in range(docs)
        for index in range(3)
    ]
    assert built.prompt_tokens == sum(len(r.tokens) + len(r.continuation) for r in requests)
    assert built.cached_tokens == sum(
        alike_blocks([*a.tokens, *a.continuation], [*b.tokens, *b.continuation])
        for a, b in itertools.pairwise(requests)
    )
    assert built.versions == {"tiny_choice": "1.5", "tiny_short": "1.5"}
    assert not built.asks
    assert built.generate_requests == 0


def test_the_data_files_of_a_dataset_are_written_down(
    evaluator: Evaluators, tmp_path: Path
) -> None:
    built = evaluator().build(Dataset(name="tiny_group"), lambda _: None)
    assert built.sources == {
        str(path): f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in ((TASKS / "data" / f"choice_{split}.jsonl") for split in ("train", "test"))
    }
    own = evaluator(tmp_path).build(write_task(tmp_path, [{"q": "a", "a": "b"}]), lambda _: None)
    assert [Path(path).name for path in own.sources] == ["own's test.jsonl"]


@pytest.mark.parametrize(
    ("dataset_path", "dataset_kwargs", "names"),
    [
        ("json", {"data_files": {"test": "a[1].jsonl"}}, ["a[1].jsonl"]),
        ("json", {"data_files": {"test": ["*.jsonl"], "train": "deep/*"}}, ["a[1].jsonl", "b.csv"]),
        ("json", {"data_dir": "deep"}, ["b.csv"]),
        ("json", {"data_dir": "deep", "data_files": "b.csv"}, ["b.csv"]),
        ("./deep", None, ["b.csv"]),
        ("openai/gsm8k", None, []),
        ("json", {"data_files": "https://example.org/x.jsonl"}, []),
        (None, None, []),
    ],
)
def test_data_files_are_found_where_the_harness_finds_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dataset_path: str | None,
    dataset_kwargs: dict[str, Any] | None,
    names: list[str],
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a[1].jsonl").write_text("{}")
    (tmp_path / "deep" / "b.csv").write_text("x")
    monkeypatch.chdir(tmp_path)
    found = data_sources(dataset_path, dataset_kwargs)
    assert sorted(Path(path).name for path in found) == names


def test_building_twice_gives_the_same_and_touches_neither_stdout_nor_the_generators(
    evaluator: Evaluators, capsys: pytest.CaptureFixture[str]
) -> None:
    random.seed(5)
    before = random.getstate()
    first = requests_of(evaluator(), Dataset(name="tiny_group"))
    assert random.getstate() == before
    random.random()
    assert requests_of(evaluator(), Dataset(name="tiny_group")) == first
    other_seed = requests_of(evaluator(seed=1), Dataset(name="tiny_group"))
    assert [r.tokens for r in other_seed] != [r.tokens for r in first]
    assert capsys.readouterr().out == ""


def test_a_limit_is_a_prefix_of_the_whole(evaluator: Evaluators) -> None:
    whole = requests_of(evaluator(), Dataset(name="tiny_choice"))
    assert requests_of(evaluator(), Dataset(name="tiny_choice", limit=4)) == whole[:12]


def test_the_words_of_a_request_are_those_of_the_task(
    evaluator: Evaluators, tokenizer: Path
) -> None:
    request = requests_of(evaluator(), Dataset(name="tiny_sums", num_fewshot=1))[1]
    assert _text(request.tokens, tokenizer) == (
        "<s>Question: What is 1 plus 2?\nAnswer: 1 plus 2 is 3.\n\n"
        "Question: What is 2 plus 2?\nAnswer:"
    )
    assert request.stop == ["Question:", "\n\n", "</s>"]
    assert (request.max_tokens, request.sampling) == (24, {})


def test_trailing_spaces_move_into_the_continuation(evaluator: Evaluators, tokenizer: Path) -> None:
    last = requests_of(evaluator(), Dataset(name="tiny_choice"))[-1]
    assert _text(last.continuation, tokenizer) == "  green"
    assert _text(last.tokens, tokenizer).endswith("soot? It is")


def test_an_empty_context_is_the_prefix_token(evaluator: Evaluators, tokenizer: Path) -> None:
    conditional, unconditional = (
        requests_of(evaluator(), Dataset(name="tiny_mutual"))[index] for index in (0, 3)
    )
    assert unconditional.tokens == [BOS]
    assert unconditional.continuation == conditional.continuation


@pytest.mark.parametrize(("backend", "most"), [("hf", 101), ("vllm", 99)])
def test_long_contexts_lose_their_beginning(
    evaluator: Evaluators, tokenizer: Path, backend: str, most: int
) -> None:
    last = requests_of(evaluator(max_length=100, backend=backend), Dataset(name="tiny_choice"))[-1]
    assert len(last.tokens) + len(last.continuation) == most
    assert _text(last.continuation, tokenizer) == "  green"
    asked = requests_of(evaluator(max_length=100, backend=backend), Dataset(name="tiny_sums"))[-1]
    assert len(asked.tokens) == 100 - 24
    assert _text(asked.tokens, tokenizer).endswith("What is 1 plus 1?\nAnswer:")


@pytest.mark.parametrize(("backend", "most"), [("hf", 51), ("vllm", 49)])
def test_rolling_windows_score_every_token_once(
    evaluator: Evaluators, tokenizer: Path, backend: str, most: int
) -> None:
    requests = requests_of(evaluator(max_length=50, backend=backend), Dataset(name="tiny_prose"))
    pages = [json.loads(line)["page"] for line in _lines("prose.jsonl")]
    for doc, page in enumerate(pages):
        windows = [request for request in requests if request.doc == doc]
        assert [request.window for request in windows] == list(range(len(windows)))
        scored = [token for request in windows for token in request.continuation]
        assert _text(scored, tokenizer) == "<s>" + page
        assert all(len(r.tokens) + len(r.continuation) <= most for r in windows)
        assert len({request.prompt_hash for request in windows}) == 1


def test_the_options_of_a_dataset_reach_the_requests(evaluator: Evaluators) -> None:
    dataset = Dataset(
        name="tiny_sums",
        gen_kwargs={"do_sample": True, "temperature": 0.5, "top_k": 9, "max_gen_toks": 5},
        repeats=2,
        limit=1,
    )
    first, second = requests_of(evaluator(), dataset)
    assert first.sampling == {"temperature": 0.5, "top_k": 9}
    assert first.max_tokens == 5
    assert (first.repeat, second.repeat) == (0, 1)
    assert first.tokens == second.tokens
    plain = requests_of(evaluator(), Dataset(name="tiny_sums", limit=1))[0]
    assert plain.tokens == first.tokens
    assert plain.prompt_hash != first.prompt_hash  # arguments of a generation are part of it


@pytest.mark.parametrize(
    ("gen_kwargs", "words"),
    [
        ({"num_beams": 4}, "num_beams"),
        ({"suppress_tokens": [1]}, "suppress_tokens"),
        ({"max_gen_toks": 2000}, "max_gen_toks"),
        ({"max_gen_toks": 0}, "max_gen_toks"),
    ],
)
def test_generation_that_cannot_be_had_is_refused(
    evaluator: Evaluators, gen_kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=rf"(?s)'tiny_sums'.*document 0.*{words}"):
        requests_of(evaluator(), Dataset(name="tiny_sums", gen_kwargs=gen_kwargs))


def test_a_chat_template_that_is_not_there_is_said_to_be_missing(evaluator: Evaluators) -> None:
    with pytest.raises(UserError, match=r"^dataset 'tiny_sums': .* has no chat template: set"):
        requests_of(evaluator(), Dataset(name="tiny_sums", chat_template=True))


def test_a_tokenizer_may_have_its_chat_template_in_its_code(tokenizer: Path) -> None:
    """As those of Mistral's own format do."""
    loaded = load_tokenizer(tokenizer)
    model = RequestModel(lambda: loaded, max_length=99, backend="vllm", think_end=None)
    assert not model.has_chat_template

    class InCode(type(loaded)):  # type: ignore[misc]  # it is known at run time only
        def apply_chat_template(self, *args: object, **options: object) -> str:
            return "[INST]hi[/INST]"

    loaded.__class__ = InCode
    assert model.has_chat_template


def test_a_model_thinks_until_it_says_so(tokenizer: Path) -> None:
    def model(backend: Backend) -> RequestModel:
        loaded = load_tokenizer(tokenizer)
        return RequestModel(lambda: loaded, max_length=99, backend=backend, think_end="</think>")

    task = {"until": ["\n\n"], "max_gen_toks": 8}
    generation = model("vllm").generation(task)
    assert generation.stop == ["</s>"]
    assert model("hf").generation(task).stop == ["\n\n", "</s>"]
    said = "hm\n\nno </think> more </think>\n42\n\nQuestion"
    assert model("vllm").cut(said, generation) == "42"
    assert task == {"until": ["\n\n"], "max_gen_toks": 8}


def test_texts_are_cut_at_stops_and_repeats_all_count(evaluator: Evaluators) -> None:
    dataset = Dataset(name="votes-of-three", task="tiny_votes", limit=1)
    ours = evaluator()
    texts = ["1 plus 2 is 3.\n\n4", "it is 5", "3 Question: 6"]
    responses = [_answer(r, texts[r.repeat]) for r in requests_of(ours, dataset)]
    results = ours.finish(dataset, reversed(responses), {})
    assert results.results["votes-of-three"]["exact_match,vote"] == 1.0
    assert results.items == 1


def test_names_of_results(evaluator: Evaluators) -> None:
    ours = evaluator()
    for name, leaf in (("tiny_group", "tiny_short"), ("renamed", "renamed/tiny_short")):
        dataset = Dataset(name=name, task="tiny_group")
        results = ours.finish(dataset, map(_answer, requests_of(ours, dataset)), {})
        assert {name, leaf} < results.results.keys()
        inner = leaf.replace("tiny_short", "tiny_group::tiny_inner")  # the harness's own name
        assert results.groups.keys() == {name, inner}
        assert results.n_samples[leaf] == {"original": 6, "effective": 6}
        assert 0 <= results.results[name]["acc,none"] <= 1
        json.dumps(results.model_dump(), allow_nan=False)


def test_a_lost_or_strange_response_is_no_score(evaluator: Evaluators) -> None:
    ours = evaluator()
    dataset = Dataset(name="tiny_cloze")
    responses = list(map(_answer, requests_of(ours, dataset)))
    with pytest.raises(RecordError, match=r"'tiny_cloze', document 3.*missing"):
        ours.finish(dataset, [r for r in responses if r.doc != 3], {})
    strange = responses[2].model_copy(update={"prompt_hash": "0" * 16})
    with pytest.raises(RecordError, match=r"'tiny_cloze', document 2.*another prompt"):
        ours.finish(dataset, [*responses[:2], strange, *responses[3:]], {})
    extra = responses[0].model_copy(update={"doc": 99})
    with pytest.raises(RecordError, match="document 99"):
        ours.finish(dataset, [*responses, extra], {})
    assert ours.finish(dataset, responses, {}).results["tiny_cloze"]["acc,none"] == 0.0


def test_programs_are_asked_shard_by_shard_and_looked_up_at_the_end(
    evaluator: Evaluators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    dataset = Dataset(name="tiny_code")
    requests: list[Request] = []
    built = evaluator().build(dataset, requests.append)
    assert built.asks
    solutions = [json.loads(line)["solution"] for line in _lines("code.jsonl")]
    responses = [
        _answer(r, solutions[r.doc] + "\n#" if r.repeat == 0 else " nonsense(") for r in requests
    ]
    metric = evaluator()
    questions = [
        question
        for item in (4, 1, 0, 3, 2)
        for question in metric.questions(dataset, [r for r in responses if r.item == item])
    ]
    assert len({question.id for question in questions}) == len(questions) == 10
    first = next(q for q in questions if "add" in q.content and "nonsense" not in q.content)
    assert first.content == (
        "def add(a, b):\n    return a + b\n\ndef check(f):\n    assert f(2, 3) == 5\ncheck(add)"
    )
    answers = {
        question.id: Answer(
            id=question.id, passed="nonsense" not in question.content, result="", seconds=0
        )
        for question in questions
    }
    results = metric.finish(dataset, responses, answers).results["tiny_code"]
    assert (results["pass@1,create_test"], results["pass@2,create_test"]) == (0.5, 1.0)
    answers.popitem()
    with pytest.raises(RecordError, match="1 questions"):
        metric.finish(dataset, responses, answers)


def test_questions_change_nothing_of_the_scores(evaluator: Evaluators) -> None:
    """Even where a metric draws random numbers."""
    dataset = Dataset(name="tiny_guess")
    responses = list(map(_answer, requests_of(evaluator(), dataset)))
    alone = evaluator().finish(dataset, responses, {})
    ours = evaluator()
    assert ours.questions(dataset, [r for r in responses if r.item < 5]) == []
    assert ours.finish(dataset, responses, {}) == alone
