#!/usr/bin/env python3
"""Real items, a real engine and a real Slurm, with the harness's own command beside it.

    python scripts/acceptance.py --data ../shared/data --limit 16

Brings up a Slurm of four nodes on this machine (root), scores a checkpoint on GSM8K, ARC,
HumanEval and subjects of MMLU with vLLM on all four, and compares every number with what
`lm_eval --model hf` says. Then the same without Slurm, and on Slurm again with the supervisor, a
trial and a keeper killed on the way. Without --checkpoint the model is a tiny random one, whose
scores are poor but have to be equal all the same. Takes about a quarter of an hour on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from _processes import DevClusterError
from slurm_dev import DevCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import reference
from tests.runs import Workspace, kill, processes
from tests.tiny import tiny_model

_ROOT = Path(__file__).resolve().parents[1]
TASKS = _ROOT / "tests" / "fixtures" / "shared_tasks"
TEXT = (
    "gsm8k",
    "arc_easy",
    "arc_challenge",
    "mmlu_abstract_algebra",
    "mmlu_anatomy",
    "mmlu_astronomy",
    "mmlu_college_biology",
    "mmlu_computer_security",
    "mmlu_world_religions",
)
CODE = ("humaneval",)
CONTEXT = 8192
"""Tokens of the tiny model: no prompt of these tasks is cut, see `reference.roomy`."""

ENGINE_ARGS = '{"dtype": "float32", "max_num_seqs": 8}'
"""So few requests at once that the engine that starts first leaves some to the others."""

ROOM_FOR_ONE_GIB = "600"
"""Memory of a trial on the nodes of scripts/slurm_dev.py, so that each has room for one."""

_STAGE = Path("/dev/shm") / f"coordinate-eval-{os.getuid()}"  # noqa: S108 - looked at, not written


@dataclass
class Report:
    """Checks and their results, printed as they come and again as one table."""

    console: Console
    failed: bool = False
    steps: Table = field(default_factory=lambda: Table("step", "outcome", "detail", title="Steps"))

    def add(self, step: str, ok: bool, detail: str) -> None:
        """Note one step."""
        self.failed |= not ok
        outcome = "[green]ok[/]" if ok else "[red]FAILED[/]"
        self.steps.add_row(step, outcome, detail)
        self.console.print(outcome, f"{step}: {detail}", soft_wrap=True)

    def same(self, step: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Note whether all numbers of two results are equal, and which are not."""
        found = reference.compare(ours, theirs)
        wrong = [f"{c.task} {c.metric}: {c.ours} ≠ {c.theirs}" for c in found if not c.equal]
        self.add(step, bool(found) and not wrong, "; ".join(wrong) or f"{len(found)} values equal")

    def scores(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Print both scores of every metric."""
        shown = Table("task", title="Scores")
        for column in ("metric", "coordinate-eval", "lm_eval --model hf", "equal?"):
            shown.add_column(column, overflow="fold")
        for compared in reference.compare(ours, theirs):
            if "," in compared.metric:
                values = (_shown(compared.ours), _shown(compared.theirs))
                equal = "yes" if compared.equal else "[red]NO[/]"
                shown.add_row(compared.task, compared.metric, *values, equal)
        self.console.print(shown)


class Program:
    """`coordinate-eval` on one checkpoint and suite, as a user of this machine runs it."""

    def __init__(self, folder: Path, checkpoint: Path, suite: Path, data: Path) -> None:
        self._user = Workspace(folder)
        self._checkpoint, self._suite = checkpoint, suite
        del self._user.environ["COORDINATE_EVAL_STAGE_ROOT"]  # the default is to be seen at work
        self._user.environ |= {
            "BENCHMARKS_FOLDER": str(data),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }

    def run(self, name: str, *options: object, **environ: str) -> Path:
        """Start a run, wait for the command alone; the run's directory."""
        run = self._user.folder / "runs" / name
        started = self._user.start(
            "run", self._checkpoint, "--suite", self._suite, "--run-dir", run,
            "--engine", "vllm", "--engine-args", ENGINE_ARGS, *options, **environ,
        )  # fmt: skip
        _, said = started.communicate()
        if not (run / "run.json").exists():
            raise SystemExit(f"coordinate-eval made no run {name}:\n{said}")
        return run

    def on_slurm(self, name: str, nodes: int) -> Path:
        """Run one trial on each of so many nodes."""
        where = ("--cluster", "slurm", "--nodes", f"node[1-{nodes}]", "--max-gpus", nodes)
        return self.run(name, *where, COORDINATE_EVAL_TRIAL_MEMORY_GIB=ROOM_FOR_ONE_GIB)


def check_end(report: Report, name: str, run: Path, found: Mapping[str, Any]) -> None:
    """Note whether a run ended complete, and left neither weights nor jobs behind."""
    missing = "; ".join(f"{dataset}: {why}" for dataset, why in found["missing"].items())
    report.add(f"{name}: complete", found["complete"], missing or f"{found['seconds']:.0f} s")
    _await(lambda: not _queue() and not processes(str(run)))
    report.add(f"{name}: nothing runs any more", True, "empty queue, no process of the run")
    left = _STAGE / found["run"]
    report.add(f"{name}: no weights left", not left.exists(), f"{left} is gone")


def check_slurm(report: Report, program: Program, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a run on four nodes with the harness's command, and return its scores."""
    run = program.on_slurm("four-nodes", 4)
    found = reference.ended(run)
    check_end(report, "Slurm", run, found)
    trials = [json.loads(path.read_text()) for path in (run / "trials").glob("*.json")]
    nodes = {trial["node"] for trial in trials}
    shares = sorted(f"{trial['node']} {trial['responses']}" for trial in trials)
    report.add("Slurm: trials on all nodes", len(nodes) == 4, f"responses: {', '.join(shares)}")
    # Engines start at different times on a busy machine, and the first may find little to share.
    answering = sum(1 for trial in trials if trial["responses"])
    report.add("Slurm: work was shared", answering > 1, f"{answering} trials answered")
    calls = found["scheduler_calls"]
    detail = f"{calls.get('sbatch', 0)} sbatch and {calls.get('squeue', 0)} squeue calls"
    # A keeper and an array of trials for each node, and metric jobs.
    report.add("Slurm: calls", calls.get("sbatch", 0) <= 2 * len(nodes) + 2, detail)
    compared = {t: v for t, v in found["results"].items() if t in expected}
    report.scores(compared, expected)
    report.same("Slurm: scores are lm_eval's", compared, expected)
    return dict(found["results"])


def check_local(report: Report, program: Program, scores: Mapping[str, Any]) -> None:
    """Compare a run of two engines without Slurm with the scores of the run on Slurm."""
    run = program.run(
        "local", "--cluster", "local", "--max-gpus", 2,
        COORDINATE_EVAL_LOCAL_GPUS="2", COORDINATE_EVAL_TRIAL_MEMORY_GIB="4",
    )  # fmt: skip
    found = reference.ended(run)
    check_end(report, "local", run, found)
    report.same("local: scores are Slurm's", found["results"], scores)


def check_kill(
    report: Report, program: Program, who: str, command: str, scores: Mapping[str, Any]
) -> None:
    """Compare a run on two nodes, of which a process is killed while responses come in."""
    name = f"{who} killed"
    run = program.on_slurm(who, 2)
    done = run / "results.json"
    _await(lambda: done.exists() or any(run.glob("outputs/*/*.part")))
    pids = _claimants(run) if command == "_trial" else processes(command, str(run))[:1]
    report.add(f"{name}: in the middle", bool(pids) and not done.exists(), f"process {pids}")
    if pids:
        kill(pids)
    found = reference.ended(run)
    if command == "_trial":
        died = [p for p in run.glob("claims/outputs/*/*.revoked") if '"died"' in p.read_text()]
        report.add(f"{name}: its shards were freed", bool(died), f"{len(died)} claims revoked")
    check_end(report, name, run, found)
    report.same(f"{name}: same scores", found["results"], scores)


def lm_eval(report: Report, checkpoint: Path, limit: int, folder: Path) -> dict[str, Any]:
    """Return the harness's results, as far as its command can compute them here."""

    def ask(tasks: Sequence[str]) -> dict[str, Any]:
        found = reference.lm_eval(
            checkpoint, tasks, "--limit", limit, "--batch_size", 1, include=TASKS, folder=folder
        )
        return dict(found["results"])

    found = ask(TEXT)
    report.add("lm_eval: text", True, f"{len(found)} tasks")
    try:
        found |= ask(CODE)
        report.add("lm_eval: code", True, ", ".join(CODE))
    except subprocess.CalledProcessError as error:
        if "code_eval" not in error.stderr:
            raise
        why = "cannot load code_eval without a hub: compared between our runs only"
        report.add("lm_eval: code", True, f"{', '.join(CODE)} {why}")
    return found


def write_suite(folder: Path, limit: int) -> Path:
    """Write the suite of all tasks, `limit` items of each."""
    datasets = [{"name": task, "task": task} for task in (*TEXT, *CODE)]
    content = {"include_path": [str(TASKS)], "defaults": {"limit": limit}, "datasets": datasets}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def accept(report: Report, given: argparse.Namespace, folder: Path) -> None:
    """Take all steps, on a cluster that is up."""
    data = given.data.resolve() / "benchmarks"
    os.environ["BENCHMARKS_FOLDER"] = str(data)
    checkpoint = given.checkpoint or reference.roomy(tiny_model(), folder / "tiny", CONTEXT)
    program = Program(folder, checkpoint.resolve(), write_suite(folder, given.limit), data)
    expected = lm_eval(report, checkpoint.resolve(), given.limit, folder)
    scores = check_slurm(report, program, expected)
    check_local(report, program, scores)
    for who, command in (("supervisor", "_supervise"), ("trial", "_trial"), ("keeper", "_keep")):
        check_kill(report, program, who, command, scores)


def main() -> int:
    """Run the command line, and return its exit status: 1 if any step failed."""
    given = _arguments()
    report = Report(Console(highlight=False))
    with tempfile.TemporaryDirectory(prefix="coordinate-eval-acceptance-") as name:
        folder = Path(name)
        cluster = DevCluster(folder / "slurm")
        try:
            cluster.up()
            os.environ["SLURM_CONF"] = str(cluster.conf)
            report.add("cluster", True, f"nodes {', '.join(cluster.shape.names())} are up")
            accept(report, given, folder)
        except DevClusterError as error:
            report.add("cluster", False, str(error))
        except subprocess.CalledProcessError as error:
            report.add("lm_eval", False, error.stderr[-2000:])
        finally:
            cluster.down()
    report.console.print(report.steps)
    return 1 if report.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=_ROOT.parent / "shared" / "data",
        help="folder with benchmarks/<name>/<file> (default: %(default)s)",
    )
    parser.add_argument("--limit", type=int, default=16, help="items of each dataset (default: 16)")
    parser.add_argument("--checkpoint", type=Path, help="default: a tiny random model")
    return parser.parse_args()


def _await(holds: Callable[[], object]) -> None:
    """Wait, however long engines take to start on this machine."""
    while not holds():
        time.sleep(0.1)


def _claimants(run: Path) -> list[int]:
    """Return the process of one trial that holds shards not yet published, if there is any.

    A trial whose engine still starts would be no loss.
    """
    for path in run.glob("claims/outputs/*/*.json"):
        span = path.name.split(".")[0]
        pid = int(json.loads(path.read_text())["pid"])
        published = run / "outputs" / path.parent.name / f"{span}.jsonl"
        if not published.exists() and pid in processes("_trial", str(run)):
            return [pid]
    return []


def _queue() -> str:
    """Return what the cluster of this script still runs or will run."""
    argv = ["squeue", "-h", "-o", "%j"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
