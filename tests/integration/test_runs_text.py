"""Tasks whose scoring may run what the model wrote are known by their code."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from tests.scoring import EVALUATES, KEEPS, write_task
from tests.tiny import tiny_model

from coordinate_eval.evaluators.harness import evaluator as harness
from coordinate_eval.evaluators.harness.tasks.runs_text import _OWN_TASKS, _findings
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
        ("from os import popen as p\ndef score(d, r): p(r[0])", "imports os.popen"),
        ("from os import execvp\ndef score(d, r): execvp(r[0], r)", "imports os.execvp"),
        ("from os import *\ndef score(d, r): execv(r[0], r)", "imports os.*"),
        ("import os as o\ndef score(d, r): o.execvp(r[0], r)", "o.execvp"),
        ("import posix\ndef score(d, r): posix.posix_spawn(r[0], r, {})", "imports posix"),
        ("import asyncio as a\ndef score(d, r): a.create_subprocess_shell(r[0])", "_shell"),
        ("import sys\ndef score(d, r): sys.modules['os']", "sys.modules"),
        ("import os\ndef score(d, r): getattr(os, r[1])(r[0])", "getattr(os, r[1])"),
        ("import os\ndef score(d, r): getattr(os, 'system')(r[0])", "getattr(os, 'system')"),
        ("import os\ndef score(d, r): vars(os)[r[1]](r[0])", "vars(os)[r[1]]"),
        ("def score(d, r): globals()['ev' + 'al'](r[0])", "globals()['ev' + 'al']"),
        ("def score(d, r): score.__globals__", "score.__globals__"),
        ("import types\ndef score(d, r): types.CodeType(r[0])", "types.CodeType"),
        ("import typing\ndef score(d, r): typing.get_type_hints(r)", "get_type_hints"),
        ("from logging.config import dictConfig as c\ndef score(d, r): c(d)", "dictConfig"),
        ("import _pickle\ndef score(d, r): _pickle.loads(r[0])", "imports _pickle"),
        ("import pydoc\ndef score(d, r): pydoc.locate(r[0])", "imports pydoc"),
        ("from yaml import load, Loader\ndef score(d, r): load(r[0], Loader)", "imports yaml.load"),
        ("from yaml import load as l\ndef score(d, r): l(r[0], d)", "imports yaml.load"),
        ("import yaml as y\ndef score(d, r): y.load_all(r[0], d)", "y.load_all(r[0], d)"),
        ("from yaml import unsafe_load_all\ndef score(d, r): ...", "unsafe_load_all"),
        ("import pandas as p\ndef score(d, r): p.DataFrame().query(r[0])", "query(r[0])"),
        ("from pandas import eval as e\ndef score(d, r): e(r[0])", "imports pandas.eval"),
        ("import torch, io\ndef score(d, r): torch.load(io.BytesIO(r[0]))", "torch.load("),
        ("import torch\ndef score(d, r): torch.hub.list(r[0])", "torch.hub"),
        ("import numpy as np\ndef score(d, r): np.load(r[0], None, True)", "np.load("),
        ("import numpy.f2py as f\ndef score(d, r): f.compile(r[0])", "numpy.f2py"),
        ("import nltk\ndef score(d, r): nltk.data.load(r[0])", "nltk.data.load(r[0])"),
        ("from evaluate import load\nm = load('x/apps')", "load('x/apps')"),
        ("from lm_eval.utils import env\ndef score(d, r): env.from_string(r[0])", "from_string"),
        ("from lm_eval.utils import apply_template as t\nt(r[0], d)", "apply_template"),
        ("import os\ndef score(d, r):\n    f = os\n    f.execvp(r[0], r)", "calls f.execvp"),
        ("import shutil\ndef score(d, r): shutil.os.execvp(r[0], r)", "shutil.os.execvp"),
        ("import platform\ndef score(d, r): platform.subprocess.run(r)", "platform.subprocess"),
        ("import os\ndef score(d, r): os.__dict__[r[0]](r[1])", "os.__dict__"),
        ("import torch\ndef score(d, r): list(map(torch.load, r))", "calls torch.load"),
        ("import inspect\ninspect.signature(f, eval_str=True)", "with eval_str"),
        ("from .helps import grade\ndef score(d, r): ...", "helps.py, line 1, calls eval"),
        ("import helps\ndef score(d, r): ...", "helps.py, line 1, calls eval"),
    ],
)
def test_each_way_of_running_text_is_found(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "helps.py").write_text("def grade(text): return eval(text)")
    file = tmp_path / "metric.py"
    file.write_text(text)
    assert what in next(_findings([file]))


@pytest.mark.parametrize(
    "text",
    [
        "import json\ndef score(d, r): json.loads(r[0])",
        "import evaluate as e\nm = e.load('bleu')",
        "import numpy as np\nx = getattr(np, 'mean')\ny = getattr(x, x.name)",
        "globals().update({})\nglobals()['f'] = 1\nx = 'f' in globals()",
        "from .helps import *",
    ],
)
def test_what_keeps_text_is_not_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "helps.py").write_text("def grade(text): return text")
    file = tmp_path / "metric.py"
    file.write_text(text)
    assert list(_findings([file])) == []


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
