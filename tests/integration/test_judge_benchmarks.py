"""MT-Bench, Vicuna-Bench and Arena-Hard: what the model and the judge are asked, by their rules."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.judged_datasets import Judged

pytest.importorskip("lm_eval")

import datasets

from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.inputs.suites.suite_yaml import shipped_folder
from coordinate_eval.errors import DataMissing, UserError
from coordinate_eval.evaluators.judged import published

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data" / "benchmarks"
BENCHMARKS = Path(os.environ.get("BENCHMARKS_FOLDER", _BESIDE))

PROMPTS = [
    {"name": name, "system_prompt": f"system {name}", "prompt_template": template}
    for name, template in {
        "single-v1": "{question} | {answer}",
        "single-math-v1": "{question} | {ref_answer_1} | {answer}",
        "single-v1-multi-turn": "{question_1} | {answer_1} | {question_2} | {answer_2}",
        "single-math-v1-multi-turn": "{question_1} | {ref_answer_1} | {answer_1} | "
        "{question_2} | {ref_answer_2} | {answer_2}",
        "pair-v2": "{question} | {answer_a} | {answer_b}",
    }.items()
]
QUESTIONS: list[dict[str, Any]] = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again {so}."]},
    {"question_id": 111, "category": "math", "turns": ["Add.", "Subtract."]},
    {"question_id": 141, "category": "stem", "turns": ["Explain.", "Why?"]},
]
REFERENCES = [
    {"question_id": 111, "choices": [{"index": 0, "turns": ["two", "zero"]}]},
    {"question_id": 141, "choices": [{"index": 0, "turns": ["not shown", "not shown"]}]},
]
ARENA = [
    {"uid": "a", "category": "hard_prompt", "prompt": "First {x}?"},
    {
        "question_id": "b",
        "category": "creative_writing",
        "cluster": "c",
        "turns": [{"content": "Second?"}],
    },
]
INSTRUCTIONS = """\
import nothing_that_is_run
COMMON = "Compare." + undefined()
COMMON = "Compare."
JUDGE_SETTINGS = {
    "hard_prompt": {"baseline": "m", "system_prompt": COMMON},
    "creative_writing": {"baseline": "n", "system_prompt": "Compare prose."},
}
"""
TEMPLATE = r'prompt_template: "Q {QUESTION}\nA {ANSWER_A}\nB {ANSWER_B}"'


def bench(folder: Path, name: str, files: dict[str, str]) -> Judged:
    """A shipped dataset with its own rubric, on files that the user names."""
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    shipped = shipped_folder() / "tasks" / f"{name}.yaml"
    content = {"include": str(shipped), "task": "here", "dataset_kwargs": {"data_files": files}}
    (tasks / "here.yaml").write_text(json.dumps(content))
    text = (
        "include_path: [tasks]\n"
        f"datasets:\n- {{name: d, task: here, rubric: {name}, chat_template: true}}\n"
    )
    made = suite.parse(text, where="s.yaml", folder=folder)
    texts = [" one {x}\n"]
    found = Judged(made.datasets[0], made.include_path, folder, texts=texts, max_length=50_000)
    lines = [json.dumps({"id": each, "answers": ["base"]}) for each in found.index.question_ids]
    (folder / "d.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return found


def write(folder: Path, **files: Any) -> dict[str, str]:
    """Write files: text, or rows of JSON lines."""
    for name, content in files.items():
        if not isinstance(content, str):
            content = "".join(json.dumps(row) + "\n" for row in content)
        (folder / name).write_text(content)
    return {name: str(folder / name) for name in files}


def test_mt_bench_rates_each_turn(tmp_path: Path) -> None:
    files = write(tmp_path, questions=QUESTIONS, references=REFERENCES, prompts=PROMPTS)
    made = bench(tmp_path, "mt_bench", files)
    assert [len(request.follow_ups) for request in made.requests] == [1, 1, 1]
    assert [request.sampling for request in made.requests] == [
        {"temperature": 0.7},
        {},
        {"temperature": 0.1},
    ]
    assert {request.max_tokens for request in made.requests} == {1024}
    assert made.told() == [
        ["system single-v1", "Write. | one {x}"],
        ["system single-v1-multi-turn", "Write. | one {x} | Again {so}. | two"],
        ["system single-math-v1", "Add. | two | one {x}"],
        ["system single-math-v1-multi-turn", "Add. | two | one {x} | Subtract. | zero | two"],
        ["system single-v1", "Explain. | one {x}"],
        ["system single-v1-multi-turn", "Explain. | one {x} | Why? | two"],
    ]
    content = json.loads(made.questions()[0].content)
    assert (content["temperature"], content["max_tokens"]) == (0.0, 2048)
    scores = made.results(lambda *_: "[[8.5]] or [[3]]").results["d"]
    for name in ("score", "score_turn_1", "score_turn_2", "score_writing", "score_math"):
        assert scores[f"{name},none"] == 8.5


def test_vicuna_bench_rates_one_turn(tmp_path: Path) -> None:
    questions = [{**question, "turns": question["turns"][:1]} for question in QUESTIONS]
    questions.append({"question_id": 1, "category": "generic", "turns": ["How?"]})
    files = write(tmp_path, questions=questions, references=REFERENCES, prompts=PROMPTS)
    made = bench(tmp_path, "vicuna_bench", files)
    assert [request.sampling for request in made.requests][-1] == {"temperature": 0.7}
    assert made.told()[1:] == [
        ["system single-math-v1", "Add. | two | one {x}"],
        ["system single-v1", "Explain. | one {x}"],
        ["system single-v1", "How? | one {x}"],
    ]
    assert made.results(lambda *_: "[5]").results["d"]["score,none"] == 5


@pytest.mark.parametrize("name", ["arena_hard", "arena_hard_v2"])
def test_arena_hard_compares_twice(tmp_path: Path, name: str) -> None:
    files = write(tmp_path, questions=ARENA, prompts=INSTRUCTIONS, template=TEMPLATE)
    made = bench(tmp_path, name, files)
    assert made.index.question_ids == ["a", "b"]
    assert {request.max_tokens for request in made.requests} == {4096}
    assert made.told() == [
        ["Compare.", "Q First {x}?\nA base\nB  one {x}\n"],
        ["Compare.", "Q First {x}?\nA  one {x}\n\nB base"],
        ["Compare prose.", "Q Second?\nA base\nB  one {x}\n"],
        ["Compare prose.", "Q Second?\nA  one {x}\n\nB base"],
    ]
    content = json.loads(made.questions()[0].content)
    tokens = {"arena_hard": 4096, "arena_hard_v2": 16000}[name]
    assert (content["temperature"], content["max_tokens"]) == (0.0, tokens)
    scores = made.results(lambda *_: "[[A>B]], or rather [[b<<a]]").results["d"]
    assert (scores["win_rate,none"], scores["position_bias,none"]) == (0.5, 1)
    assert ("win_rate_creative_writing,none" in scores) == (name == "arena_hard_v2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"references": REFERENCES[1:]}, "question 111 (math) has no reference answer"),
        ({"questions": [{"question_id": 1, "turns": []}]}, "line 1: it has no category"),
        ({"questions": "{\n"}, "questions, line 1"),
        ({"questions": "5\n"}, "line 1: it has no question_id"),
        ({"questions": "[" * 100_000}, "questions, line 1"),
        ({"answers": "x"}, "data_files: unknown answers; known: questions, references, prompts"),
        ({"prompts": PROMPTS[:1]}, "single-v1-multi-turn"),
        (
            {"prompts": [{**row, "prompt_template": "{ref_answer_9}"} for row in PROMPTS]},
            "'ref_answer_9' is undefined",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    given = {"questions": QUESTIONS, "references": REFERENCES, "prompts": PROMPTS, **changes}
    with pytest.raises(UserError) as caught:
        bench(tmp_path, "mt_bench", write(tmp_path, **given))
    assert words in str(caught.value)


def test_the_judges_instructions_are_read_and_never_run(tmp_path: Path) -> None:
    hostile = f"open({str(tmp_path / 'ran')!r}, 'w')\nJUDGE_SETTINGS = open('x')\n"
    files = write(tmp_path, questions=ARENA, prompts=hostile, template=TEMPLATE)
    with pytest.raises(UserError, match="cannot be loaded"):
        bench(tmp_path, "arena_hard", files)
    assert not (tmp_path / "ran").exists()


TEXT = "grün\n"


class _Hub(BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        self.send_response(200 if content is not None else 404)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a server that has `/text`."""
    _Hub.files = {"/text": TEXT.encode()}
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_a_published_file_is_fetched_once(
    hub: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"{hub}/text#sha256={hashlib.sha256(TEXT.encode()).hexdigest()}"
    assert published.read_text(source) == TEXT
    _Hub.files = {}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert published.read_text(source) == TEXT
    (kept,) = (cache / published.FOLDER).iterdir()
    kept.write_text("torn")
    with pytest.raises(ConnectionError, match="says offline"):
        published.read_text(source)


@pytest.mark.parametrize("planted", ["pipe", "link", "endless"])
def test_what_others_put_into_the_cache_is_not_waited_for(
    hub: str, cache: Path, planted: str
) -> None:
    source = f"{hub}/text#sha256={hashlib.sha256(TEXT.encode()).hexdigest()}"
    published.read_text(source)
    (kept,) = (cache / published.FOLDER).iterdir()
    kept.unlink()
    if planted == "pipe":
        os.mkfifo(kept)
    elif planted == "link":
        kept.symlink_to("/dev/zero")
    else:
        with kept.open("wb") as file:
            file.truncate(1 << 40)
    assert published.read_text(source) == TEXT
    assert kept.read_text() == TEXT


def test_a_file_without_an_end_is_not_fetched(
    hub: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "MOST_BYTES", 5)
    with pytest.raises(ConnectionError, match="larger than"):
        published.read_text(f"{hub}/text#sha256={'0' * 64}")


def test_another_file_than_the_published_one_is_refused(hub: str, cache: Path) -> None:
    with pytest.raises(ValueError, match="not the file that was published"):
        published.read_text(f"{hub}/text#sha256={'0' * 64}")
    assert not cache.exists()
    with pytest.raises(ConnectionError, match="404"):
        published.read_text(f"{hub}/other#sha256={'0' * 64}")


def test_without_a_network_the_data_are_missing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("mt_bench", "arena_hard"):
        with pytest.raises(DataMissing, match="coordinate-eval prefetch"):
            bench(tmp_path, name, {})


def _shared(name: str) -> Path:
    folder = BENCHMARKS / name
    if not folder.is_dir():
        pytest.skip(f"needs the published files in {folder}")
    return folder


def test_the_published_mt_bench(tmp_path: Path) -> None:
    folder = _shared("mt_bench")
    names = ("question", "reference_answer_gpt-4", "judge_prompts")
    paths = [str(folder / f"{name}.jsonl") for name in names]
    made = bench(
        tmp_path, "mt_bench", dict(zip(("questions", "references", "prompts"), paths, strict=True))
    )
    assert (made.index.items, made.index.requests, len(made.questions())) == (80, 160, 160)
    found = made.results(lambda *_: "Rating: [[7]]")
    assert found.results["d"]["score,none"] == 7
    assert (
        sum(name.startswith("score_") and "stderr" not in name for name in found.results["d"]) == 10
    )
    told = [content for messages in made.told() for content in messages]
    assert not any("{" + name + "}" in text for text in told for name in ("question", "answer_1"))
    assert all(text.count("one {x}") == 1 for text in told[1::2])


def test_the_published_mt_bench_from_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _shared("mt_bench")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (cache / published.FOLDER).mkdir(parents=True)
    for file, name in (
        ("question", "question"),
        ("reference_answer_gpt-4", "gpt-4"),
        ("judge_prompts", "judge_prompts"),
    ):
        content = (folder / f"{file}.jsonl").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        (cache / published.FOLDER / f"{digest[:16]}-{name}.jsonl").write_bytes(content)
    assert bench(tmp_path, "mt_bench", {}).index.items == 80


def test_the_published_vicuna_bench(tmp_path: Path) -> None:
    prompts = _shared("mt_bench") / "judge_prompts.jsonl"
    questions = _shared("vicuna_bench") / "question.jsonl"
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    references = [
        {"question_id": row["question_id"], "choices": [{"turns": ["42"]}]} for row in rows
    ]
    files = write(tmp_path, references=references)
    files |= {"questions": str(questions), "prompts": str(prompts)}
    made = bench(tmp_path, "vicuna_bench", files)
    assert (made.index.items, len(made.questions())) == (80, 80)
    assert sum("42\n[The End of Reference" in user for _, user in made.told()) == 10


def test_the_published_arena_hard(tmp_path: Path) -> None:
    instructions = INSTRUCTIONS.replace('"hard_prompt"', '"arena-hard-v0.1"')
    files = write(tmp_path, prompts=instructions, template=TEMPLATE)
    files["questions"] = str(_shared("arena_hard") / "question.jsonl")
    made = bench(tmp_path, "arena_hard", files)
    assert (made.index.items, len(set(made.index.question_ids))) == (500, 500)
    assert len(made.questions()) == 1000
