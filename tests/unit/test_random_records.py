"""Whatever a run directory holds, the commands that read it end in an answer or one message."""

import json
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decisions import ROUND, SPANS, make_run
from tests.mutations import mutated_bytes, mutated_tree
from tests.random_examples import examples
from tests.shown_runs import Scheduler, submitted_run
from typer.testing import CliRunner

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.report.first_signal import FirstSignal
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Submitted, TrialProgress
from coordinate_eval.coordinator.run.supervision import Epoch
from coordinate_eval.errors import CoordinateError
from coordinate_eval.records import DatasetResults

COMMANDS = [
    ("status", "r"), ("status", "r", "--json"), ("runs",), ("runs", "--dataset", "a"),
    ("runs", "--json"), ("scores",), ("scores", "r", "--csv"), ("scores", "--json"),
    ("scores", "--markdown"),
]  # fmt: skip


def written(home: Path) -> RunDir:
    """A run with every record that one has."""
    made, now = submitted_run(home), time.time()
    _files.write_record(made.round(0), ROUND)
    scores: dict[str, Any] = {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "a"}
    found = DatasetResults(
        dataset="a", items=3, results={"a": scores}, groups={"a": {"acc,none": 0.5}},
        higher_is_better={"a": {"acc": True}}, n_samples={"a": {"original": 3, "effective": 3}},
    )  # fmt: skip
    _files.write_record(made.dataset_results("a"), found)
    _files.write(made.dataset_error("b"), "no data")
    for span in SPANS[:1]:
        _files.write(made.published("outputs", span), "")
    job = Job(name="ce-r-0-trials", argv=("x",), minutes=5, log="/l")
    _files.write_record(made.job(job.name), Submitted(job=job, job_id="7", time=now))
    trial = TrialProgress(
        trial="n1-0", task="7_0.0", node="n1", state="running", started=now - 30, updated=now
    )
    _files.write_record(made.trial(trial.trial), trial)
    epoch = Epoch(epoch=1, host="h", pid=1, time=now, token="t")
    _files.write_record(made.supervisor(1), epoch)
    dataset = {
        "estimates": {"a": {"acc,none": {"value": 0.5, "stderr": 0.1, "low": 0.3, "high": 0.7}}},
        "items": 3, "of_items": 10, "tasks": 1, "of_tasks": 1,
    }  # fmt: skip
    signal = FirstSignal.model_validate(
        {"run": "r", "seconds": 3, "datasets": {"a": dataset}, "pending": ["b"], "without": {}}
    )
    _files.write_record(made.first_signal, signal)
    return made


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("original")
    made = written(home)
    _files.write(made.results, _files.pretty(collect_results(made, make_run(), "")))
    return home


@examples(60)
@given(random=st.randoms(use_true_random=False))
def test_commands_answer_whatever_the_records_of_a_run_hold(
    original: Path, tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    home = tmp_path_factory.mktemp("runs")
    shutil.copytree(original, home, dirs_exist_ok=True)
    if random.randrange(2):
        (home / "r" / "results.json").unlink()
    files = sorted(path for path in (home / "r").rglob("*") if path.suffix in (".json", ".error"))
    for file in random.sample(files, random.choice((1, 1, 2))):
        content = file.read_bytes()
        if file.suffix == ".json" and random.randrange(4):
            tree: Any = mutated_tree(random, json.loads(content))
            content = json.dumps(tree).encode("utf-8", "surrogatepass")
        else:
            content = mutated_bytes(random, content)
        file.write_bytes(content)
    known: list[Any] | None = random.choice(([], None))
    env = {"COORDINATE_EVAL_RUNS_DIR": str(home), "COLUMNS": "100"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "by_name", lambda *_: Scheduler(known))
        ran = CliRunner().invoke(app, list(random.choice(COMMANDS)), env=env)
    shutil.rmtree(home)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit | CoordinateError):
        raise ran.exception
