"""Runs whose responses are made up, scored by the program's own scorer, as root and as nobody."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import (
    Dataset,
    DatasetResults,
    Request,
    RequestKind,
    Response,
    Rubric,
    Shard,
    Suite,
)
from tests.decisions import make_run
from tests.own_tasks import write_task
from tests.runs import PATIENCE_SECONDS, TASKS
from tests.tiny import tiny_model

SYSTEM_PYTHON = Path("/usr/bin/python3")
NOBODY = 65534

EVALUATES = '''"""A metric that evaluates the answer, as the harness's `cruxeval_input` does."""


def score(doc, results):
    try:
        return {"acc": float(eval(results[0]))}
    except Exception:
        return {"acc": 0.0}
'''
KEEPS = '''"""A metric that keeps text as text."""


def score(doc, results):
    return {"acc": float(results[0] == doc["a"])}
'''


@dataclass
class Scored:
    """A run, what its scorer said, and how it ended."""

    run_dir: RunDir
    said: str
    status: int
    results: dict[str, DatasetResults] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def write_metric(folder: Path, name: str, module: str, items: int) -> None:
    """Write a task whose metric is `score` of a module with this text, and its data."""
    (folder / f"{name}_metric.py").write_text(module)
    write_task(
        folder,
        [{"q": f"{n}?", "a": "1"} for n in range(items)],
        name,
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": 4},
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        process_results=f"!{name}_metric.score",
    )


def make_scorable(
    root: Path,
    tasks: Path,
    responses: Mapping[str, Sequence[str]],
    rubrics: Mapping[str, Rubric] = MappingProxyType({}),
    **settings: Any,
) -> RunDir:
    """Make a run of these datasets, in this order, to whose items the model wrote these texts.

    Items beyond the texts get them again. Prompts are those of the run's engine, so that scoring
    need not make them.
    """
    run_dir = RunDir(root)
    shutil.copytree(tiny_model(), run_dir.model)
    evaluator = HarnessEvaluator(
        tokenizer=run_dir.model, max_length=1024, include_path=[str(tasks)]
    )
    shards = []
    for name, texts in responses.items():
        requests: list[Request] = []
        index = evaluator.build(_dataset(name, rubrics), requests.append)
        index = index.model_copy(update={"offsets": [0] * (index.items + 1)})
        _files.write_record(run_dir.requests_index(name), index)
        shards.append(
            Shard(dataset=name, start=0, stop=index.items, gpu_seconds=1, metric_cpu_seconds=0)
        )
        lines = [
            _response(request, texts[request.item % len(texts)]).line() for request in requests
        ]
        _files.write(run_dir.published("outputs", shards[-1].span), "".join(lines))
    datasets = [_dataset(name, rubrics) for name in responses]
    suite = Suite(name="s", digest="d", include_path=[str(tasks)], datasets=datasets)
    run = make_run(
        folder=str(tasks),
        suite=suite,
        shards=shards,
        asks=list(rubrics),
        max_length=1024,
        settings=Settings.model_validate(
            {"engine": {"name": "simulated"}, **settings}, extra="forbid"
        ),
    )
    _files.write_record(run_dir.run, run)
    return run_dir


def _dataset(name: str, rubrics: Mapping[str, Rubric]) -> Dataset:
    return Dataset(name=name, task=name, rubric=rubrics.get(name))


def start_scorer(
    run_dir: RunDir, environ: Mapping[str, str], *, ordinary: bool = False
) -> "subprocess.Popen[str]":
    """Start `coordinate-eval _score`, as root or as an ordinary user whose run it is."""
    argv = [sys.executable]
    if ordinary:
        _need_ordinary_user()
        argv = [
            shutil.which("setpriv") or "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
        ]
        argv += [str(SYSTEM_PYTHON), "-B"]
        _own(run_dir, NOBODY)
    return subprocess.Popen(
        [*argv, "-P", "-m", "coordinate_eval", "_score", str(run_dir.root)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _packages(), **environ},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(scorer: "subprocess.Popen[str]", run_dir: RunDir) -> Scored:
    """Wait for a scorer and return what it wrote."""
    try:
        said, _ = scorer.communicate(timeout=PATIENCE_SECONDS)
    finally:
        scorer.kill()
    _own(run_dir, os.geteuid())  # nobody reads what belongs to somebody else
    found = Scored(run_dir, said, scorer.returncode)
    for path in run_dir.results_folder.glob("*.json"):
        found.results[path.stem] = _files.read_record(path, DatasetResults)
    for path in run_dir.results_folder.glob("*.error"):
        found.errors[path.stem] = path.read_text()
    return found


def runs_of_sums(home: Path, **texts: list[str]) -> Path:
    """Scored runs of these names, of sums with these texts as answers, and of an empty group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(TASKS)
        for name, answers in texts.items():
            run_dir = make_scorable(home / name, TASKS, {"tiny_sums": answers, "tiny_group": [""]})
            scored = wait_for(start_scorer(run_dir, {"HOME": str(home)}), run_dir)
            assert (scored.status, scored.errors) == (0, {}), scored.said
    return home


def right_sums() -> list[str]:
    """The answers to all sums."""
    rows = map(json.loads, (TASKS / "data" / "sums.jsonl").read_text().splitlines())
    return [f"The answer is {row['answer'].split()[-1]}" for row in rows]


def _own(run_dir: RunDir, user: int) -> None:
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{user}:{user}", run_dir.root], check=True)


def _response(request: Request, text: str) -> Response:
    if request.kind is RequestKind.GENERATE:
        return respond(request, text=text, tokens=1, finish="stop")
    logprob = -int(request.prompt_hash[:6], 16) / 1e6
    return respond(request, logprob=logprob, greedy=logprob > -8, tokens=1, finish="scored")


def _packages() -> str:
    """Return the PYTHONPATH of what this process imports, without the standard library."""
    return os.pathsep.join(p for p in sys.path if p and not p.startswith(sys.base_prefix))


def _need_ordinary_user() -> None:
    """Skip a test unless root can become a user who can import what this process imports."""
    if os.geteuid() != 0 or not SYSTEM_PYTHON.exists():
        pytest.skip("needs root and a system Python")
    if not _ordinary_user_can_import():
        pytest.skip("an ordinary user cannot import this program's packages here")


@cache
def _ordinary_user_can_import() -> bool:
    tried = subprocess.run(
        [
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            *(SYSTEM_PYTHON, "-c", "import coordinate_eval, pydantic, numpy"),
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _packages()},
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0
