"""The measured part of `one_job_per_dataset`: a suite at many times its speed on a real Slurm.

Each dataset becomes made-up items whose requests take their predicted time divided by the speed.
Programs that sleep stand in for expensive metrics. `python -m benchmarks._rehearsal ORDER` runs one
dataset as a job of its own; ORDER is JSON.
"""

import fcntl
import json
import math
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tests.dev_cluster import slurm_dev
from tests.reference import ended
from tests.runs import Workspace
from tests.tiny import tiny_model

from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
from coordinate_eval.records import Question, Request

SECONDS_PER_REQUEST = 0.2
"""Long enough that sixteen engines on two cores mostly wait."""

PROGRAM_SECONDS = 1.0
"""Seconds of one program of a metric; the harness's limit is 3 s."""

GPUS_PER_NODE = 4
CPUS_PER_JOB = 4

_ROOT = Path(__file__).resolve().parents[1]
_ITEMS = """
import evaluate
from datasets import Dataset, DatasetDict

_judge = evaluate.load("code_eval")


def load(*, items, seconds=0.0, **_):
    program = "import time; time.sleep({seconds})  # {item}"
    rows = [
        {"question": f"Item {i}", "program": program.format(seconds=seconds, item=i)}
        for i in range(items)
    ]
    return DatasetDict({"test": Dataset.from_list(rows)})


def programs(responses, docs):
    return [[doc["program"]] for doc in docs]


def passed(references, predictions):
    return _judge.compute(references=references, predictions=predictions, k=[1])[0]["pass@1"]
"""
_TASK = """
task: {name}
custom_dataset: !function items.load
dataset_kwargs: {{items: {items}, seconds: {seconds}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "pass"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, do_sample: false}}
metric_list:
"""
_PLAIN = "- {metric: exact_match, aggregation: mean, higher_is_better: true}\n"
_CODE = """- {metric: !function items.passed, aggregation: mean, higher_is_better: true}
unsafe_code: true
filter_list:
- name: programs
  filter: [{function: custom, filter_fn: !function items.programs}]
"""


class Shape(NamedTuple):
    """The rehearsal: numbers of nodes, seconds of one load and of one engine start, speed."""

    nodes: Sequence[int]
    load_seconds: float
    start_seconds: float
    speed: float


class Order(NamedTuple):
    """The order for a job of one dataset; seconds are those of the rehearsal."""

    requests: str
    questions: str
    done: str
    links: str
    load_seconds: float
    start_seconds: float


def impossible() -> str:
    """Return why this machine cannot measure, or an empty string if it can."""
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        return f"it needs Slurm, as root: {slurm_dev().INSTALL}"
    return ""


def measure(costs: Sequence[Cost], shape: Shape, repeat: int) -> dict[int, tuple[float, float]]:
    """Return median seconds of one job per dataset and of coordinate-eval, by number of nodes."""
    found: dict[int, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name, _cluster(Path(name) / "slurm"):
        user = Workspace(Path(name))
        suite = write_suite(Path(name), costs, shape.speed)
        for nodes in shape.nodes:
            ours, theirs = [], []
            for attempt in range(repeat):
                run = Path(name) / f"{nodes}-nodes-{attempt}"
                ours.append(coordinated(user, suite, run, nodes, shape))
                theirs.append(one_job_each(run, [c.name for c in costs], nodes, shape))
            found[nodes] = statistics.median(theirs), statistics.median(ours)
    return found


def write_suite(folder: Path, costs: Sequence[Cost], speed: float) -> Path:
    """Write tasks and a suite that take these costs divided by `speed`; return the suite."""
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "items.py").write_text(_ITEMS)
    datasets = []
    for cost in costs:
        gpu, cpu = cost.gpu_seconds / speed, cost.metric_cpu_seconds / speed
        asks = cost.metric_cpu_seconds >= cost.items  # one program per item, of a second or more
        programs = math.ceil(cpu / PROGRAM_SECONDS) if asks else 0
        items = max(1, round(gpu / SECONDS_PER_REQUEST), programs)
        task = _TASK.format(name=cost.name, items=items, seconds=cpu / items if asks else 0.0)
        (tasks / f"{cost.name}.yaml").write_text(task + (_CODE if asks else _PLAIN))
        prior = {"gpu_seconds": items * SECONDS_PER_REQUEST, "cpu_seconds": cpu if asks else 0.0}
        datasets.append({"name": cost.name, "task": cost.name, "prior": prior})
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"include_path": [str(tasks)], "datasets": datasets}))
    return path


def coordinated(user: Workspace, suite: Path, run: Path, nodes: int, shape: Shape) -> float:
    """Return the seconds of a run of coordinate-eval, from its submission to its results."""
    start = (shape.load_seconds + shape.start_seconds) / shape.speed
    # With two requests in flight, a trial claims little more than it works on.
    args = {"seconds_per_request": SECONDS_PER_REQUEST, "start_seconds": start, "concurrency": 2}
    command = user.start(
        "run", tiny_model(), "--suite", suite, "--nodes", f"node[1-{nodes}]", "--run-dir", run,
        "--engine-args", json.dumps(args), COORDINATE_EVAL_TRIAL_ENGINE_START_SECONDS=str(start),
    )  # fmt: skip
    _, said = command.communicate()
    if command.returncode:
        raise SystemExit(said)
    found = ended(run)
    if not found["complete"]:
        raise SystemExit(f"the rehearsal did not end well: {found['missing']}")
    _await_empty_queue()
    return float(found["seconds"])


def one_job_each(run: Path, datasets: Sequence[str], nodes: int, shape: Shape) -> float:
    """Return the seconds from the submission of the first of these jobs to the end of the last.

    The jobs answer the requests and questions of a finished run of coordinate-eval.
    """
    done = run.with_name(f"{run.name}-each")
    done.mkdir()
    began = time.time()
    for dataset in datasets:
        order = Order(
            requests=str(run / "requests" / f"{dataset}.jsonl"),
            questions=str(run / "questions" / dataset),
            done=str(done / f"{dataset}.json"),
            links=str(done),
            load_seconds=shape.load_seconds / shape.speed,
            start_seconds=shape.start_seconds / shape.speed,
        )
        argv = [sys.executable, "-m", "benchmarks._rehearsal", json.dumps(order._asdict())]
        subprocess.run(
            [
                "sbatch", "--parsable", "--gres=gpu:1", f"--cpus-per-task={CPUS_PER_JOB}",
                "--mem=1000M", "--time=60", f"--chdir={_ROOT}", f"--output={done}/{dataset}.log",
                *(["--nodelist=node1"] if nodes == 1 else []), "--wrap", shlex.join(argv),
            ],
            capture_output=True, check=True,
        )  # fmt: skip
    _await_empty_queue()
    return max(float((done / f"{dataset}.json").read_text()) for dataset in datasets) - began


def job(order: Order) -> None:
    """Run one dataset from the load to its last metric, and write down the time of its end."""
    node = os.environ["SLURMD_NODENAME"]
    with (Path(order.links) / f".link-{node}").open("w") as link:
        # Loads one after another take the link as long as all at once, and the first ends sooner.
        fcntl.flock(link, fcntl.LOCK_EX)
        time.sleep(order.load_seconds)
    args: dict[str, Any] = {
        "seconds_per_request": SECONDS_PER_REQUEST,
        "start_seconds": order.start_seconds,
    }
    engine = engines.start("simulated", Path(), tensor_parallel=1, max_length=1, args=args)
    lines = Path(order.requests).read_text().splitlines()
    for _ in engine.run(Request.model_validate_json(line) for line in lines):
        pass
    asked = [
        Question.model_validate_json(line)
        for path in Path(order.questions).glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    if asked:
        for _ in Sandbox.probe().run_many(asked, workers=CPUS_PER_JOB):
            pass
    Path(order.done).write_text(str(time.time()))


@contextmanager
def _cluster(folder: Path) -> Iterator[None]:
    """Run a Slurm of four nodes in `folder`, with SLURM_CONF set while it is up."""
    script = slurm_dev()
    cluster = script.DevCluster(folder, script.Shape(gpus=GPUS_PER_NODE))
    try:
        cluster.up()
        os.environ["SLURM_CONF"] = str(cluster.conf)
        yield
    finally:
        cluster.down()


def _await_empty_queue() -> None:
    while subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout.strip():
        time.sleep(0.2)


if __name__ == "__main__":
    job(Order(**json.loads(sys.argv[1])))
