"""Tasks whose scoring may run what the model wrote are known by their code."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from tests.scoring import EVALUATES, KEEPS, write_task
from tests.tiny import tiny_model

from coordinate_eval.evaluators.harness import evaluator as harness
from coordinate_eval.evaluators.harness.runs_text import _OWN_TASKS, _findings
from coordinate_eval.records import Dataset

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"


def runs_text(folder: Path, name: str) -> str:
    evaluator = harness.HarnessEvaluator(
        tokenizer=tiny_model(), max_length=1024, include_path=[str(folder)]
    )
    return evaluator.build(Dataset(name=name, task=name), lambda _: None).runs_text


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("cruxeval/utils.py", "builtins"),
        ("longproc/metrics.py", "subprocess"),
        ("score/math/math_grader.py", "sympy"),
        ("minerva_math/utils.py", "antlr4"),
        ("leaderboard/math/utils.py", "sympy"),
    ],
)
def test_the_harness_s_own_that_evaluate_are_found(file: str, what: str) -> None:
    assert what in next(_findings([_OWN_TASKS / file]))


@pytest.mark.parametrize("file", ["ifeval/utils.py", "drop/utils.py", "ruler/niah_utils.py"])
def test_those_that_keep_text_are_not(file: str) -> None:
    assert list(_findings([_OWN_TASKS / file])) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (EVALUATES, "calls eval"),
        ("from sympy.parsing.sympy_parser import parse_expr as p\ndef score(d, r): ...", "sympy"),
        ("import os\ndef score(d, r): os.system(r[0])", "os.system"),
        ("import os\ndef score(d, r): os.execvp(r[0], r)", "os.execvp"),
        ("from pickle import loads\ndef score(d, r): ...", "imports pickle.loads"),
        ("f = __builtins__\ndef score(d, r): ...", "__builtins__"),
        ("run = exec\ndef score(d, r): run(r[0])", "calls exec"),
        ("import pandas as p\ndef score(d, r): p.eval(r[0])", "p.eval"),
        ("import evaluate\nm = evaluate.load\nx = evaluate.load('x/apps')", "x/apps"),
        ("import numpy\nnumpy.load(f, allow_pickle=True)", "allow_pickle"),
        ("import a_package_of_some_user\ndef score(d, r): ...", "a_package_of_some_user"),
        ("def score(d, r):\n    from subprocess import run", "imports subprocess.run"),
        ("from .helps import grade\ndef score(d, r): ...", "helps.py, line 1, calls eval"),
        ("import helps\ndef score(d, r): ...", "helps.py, line 1, calls eval"),
    ],
)
def test_each_way_of_running_text_is_found(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "helps.py").write_text("def grade(text): return eval(text)")
    file = tmp_path / "metric.py"
    file.write_text(text)
    assert what in next(_findings([file]))


def test_a_task_is_known_when_it_is_built(tmp_path: Path) -> None:
    write_task(tmp_path, "evil", EVALUATES, 1)
    write_task(tmp_path, "good", KEEPS, 1)
    assert runs_text(tmp_path, "evil").endswith("evil_metric.py, line 6, calls eval")
    assert runs_text(tmp_path, "good") == ""


def test_filters_aggregations_and_the_own_mark_count(tmp_path: Path) -> None:
    write_task(tmp_path, "task", KEEPS, 1)
    (tmp_path / "helps.py").write_text(
        "def kept(responses, docs): return [eval(r) for r in responses]\n"
    )
    file = tmp_path / "task.yaml"
    plain = file.read_text()
    chosen = {"name": "x", "filter": [{"function": "custom"}]}
    custom = json.dumps([chosen]).replace('"custom"', '"custom", "filter_fn": FUNCTION')
    filters = f"filter_list: {custom}".replace("FUNCTION", "!function helps.kept")
    file.write_text(f"{plain}\n{filters}\n")
    assert runs_text(tmp_path, "task").endswith("calls eval")
    file.write_text(f"{plain}\nunsafe_code: true\n")
    assert runs_text(tmp_path, "task") == "it marks itself as unsafe"


def test_programs_for_the_sandbox_and_choices_are_no_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(TASKS)
    assert runs_text(TASKS, "tiny_code") == ""
    assert runs_text(TASKS, "tiny_choice") == ""
