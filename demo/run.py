"""Trains a tiny language model from nothing and scores each of its checkpoints as it is saved.

The training loop is in `train.py`, the text in `corpus.py`. At each save this file does what a
training loop on a cluster would do: it calls `coordinate-eval run CHECKPOINT`, and later reads
`results.json`. One more checkpoint is spoilt on purpose, with noise added to its weights. At the
end there is what was learned when, what asking cost, what has changed between the last two good
checkpoints, the curves, the alarm that the bad one raises, and the path of a page of all that.

    python demo/run.py              this machine
    python demo/run.py --slurm      submits each run to Slurm and trains on meanwhile

Exit status: 0 when every run is complete, every score rose, and the bad checkpoint was noticed;
else 1.
"""

import argparse
import glob
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import corpus
import own_folder
from train import Settings, spoil, train

_HERE = Path(__file__).parent
_METRICS = {
    # Dataset of suite.yaml → the score to show, as the harness names it.
    "arithmetic": "exact_match,last-number",
    "facts": "acc,none",
    "recall": "acc,none",
    "programs": "pass@1,create_test",
}
_SEED = 0
_LOSS_EVERY = 50
_POLL_SECONDS = 2.0

_console = Console(highlight=False)


@dataclass(frozen=True)
class Evaluation:
    """One call of the coordinator: its checkpoint's step, and where its run lives."""

    step: int
    run_dir: Path
    called: float  # seconds since the epoch

    @property
    def results_file(self) -> Path:
        """Return the file that is written when the run has ended, complete or not."""
        return self.run_dir / "results.json"

    def results(self) -> dict[str, Any]:
        """Read `results.json`; if there is none, the run is incomplete, without any score."""
        if not self.results_file.exists():
            return {"complete": False, "results": {}}
        found: dict[str, Any] = json.loads(self.results_file.read_text())
        return found

    def seconds(self) -> float:
        """Return the seconds from the call to the results; not a number without results."""
        if not self.results_file.exists():
            return math.nan
        return self.results_file.stat().st_mtime - self.called


class Coordinator:
    """`coordinate-eval` as a training loop uses it: one command a checkpoint."""

    def __init__(self, folder: Path, cluster: str, engine: str) -> None:
        self._folder = folder
        self._options = ["--cluster", cluster, "--engine", engine]
        if cluster == "slurm":
            self._options.append("--queue")  # the run before may still hold the GPUs
        # Caches go into the demo's folder, and no hub is asked: all data are local.
        self._environment = os.environ | {
            "COORDINATE_EVAL_CACHE_DIR": str(folder / "cache"),
            "COORDINATE_EVAL_RUNS_DIR": str(folder / "runs"),
            "HF_DATASETS_CACHE": str(folder / "cache" / "datasets"),
            "HF_HUB_OFFLINE": "1",
            # What an engine with so small a model takes; a laptop has not the usual 16 GiB free.
            "COORDINATE_EVAL_TRIAL_MEMORY_GIB": "4",
            "COORDINATE_EVAL_TRIAL_CPUS": "1",
        }

    def call(self, step: int, checkpoint: Path) -> Evaluation:
        """Evaluate a checkpoint: here and now, with Slurm only submit."""
        evaluation = Evaluation(step, self._folder / "runs" / checkpoint.name, time.time())
        self._run(
            "run",
            str(checkpoint),
            "--suite",
            str(self._folder / "suite.yaml"),
            "--run-dir",
            str(evaluation.run_dir),
            *self._options,
        )
        return evaluation

    def compare(self, before: Evaluation, after: Evaluation) -> None:
        """Show what has changed between two checkpoints by more than chance."""
        self._run("compare", str(before.run_dir), str(after.run_dir))

    def show_training(self, checkpoints: Path) -> bool:
        """Show the curves and alarms of a training, and write its page.

        Return whether an alarm is true of its newest checkpoint.
        """
        self._run("history", str(checkpoints), "--curve")
        status = self._run("alarms", str(checkpoints)).returncode
        self._run("report", str(checkpoints), "--output", str(self._folder / "report.html"))
        return status == 1

    def wait(self, evaluation: Evaluation) -> None:
        """Return when no job of a submitted run is left."""
        while True:
            answer = self._run("status", str(evaluation.run_dir), "--json", stdout=subprocess.PIPE)
            # A note says that the scheduler did not answer, which says nothing about the run.
            status = json.loads(answer.stdout) if answer.returncode == 0 else {}
            if status.get("state") != "running" and not status.get("note"):
                return
            time.sleep(_POLL_SECONDS)

    def _run(self, *args: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coordinate_eval", *args]
        return subprocess.run(command, env=self._environment, stdout=stdout, text=True, check=False)


def prepare(folder: Path, subjects: list[corpus.Subject]) -> None:
    """Fill `folder` with the tests' data, their tasks and the suite; an earlier demo's goes.

    Raises:
        SystemExit: the folder holds something that no demo wrote.
    """
    own_folder.begin(folder)
    data, tasks = folder / "data", folder / "tasks"
    data.mkdir()
    tasks.mkdir()
    for subject in subjects:
        for name, items in subject.tests.items():
            lines = (json.dumps(item) + "\n" for item in items)
            (data / f"{name}.jsonl").write_text("".join(lines))
    for template in sorted((_HERE / "tasks").glob("*.yaml")):
        # The path is read as a pattern, in YAML, whose strings JSON's are: escaped for both.
        path = json.dumps(glob.escape(str(data / f"{template.stem}.jsonl")))
        (tasks / template.name).write_text(template.read_text().replace("@DATA@", path))
    shutil.copy(_HERE / "tasks" / "utils.py", tasks)
    shutil.copy(_HERE / "suite.yaml", folder)


def table(evaluations: list[Evaluation]) -> Table:
    """Draw a row for each checkpoint: scores with standard errors, and the seconds they took."""
    shown = Table(title="Scores of each checkpoint", title_justify="left")
    shown.add_column("step", justify="right")
    for task in _METRICS:
        shown.add_column(task, justify="right")
    shown.add_column("run took", justify="right")
    for evaluation in evaluations:
        results = evaluation.results()["results"]
        cells = [_cell(results.get(task, {}), metric) for task, metric in _METRICS.items()]
        shown.add_row(str(evaluation.step), *cells, f"{evaluation.seconds():.0f} s")
    return shown


def complaints(evaluations: list[Evaluation]) -> list[str]:
    """Say what went wrong: runs without all results, scores that did not rise."""
    found = [
        f"the run of step {e.step} is not complete: see {e.run_dir}"
        for e in evaluations
        if not e.results()["complete"]
    ]
    if found:
        return found
    first, last = (evaluations[i].results()["results"] for i in (0, -1))
    return [
        f"{task} did not rise: {first[task][metric]:.3f}, then {last[task][metric]:.3f}"
        for task, metric in _METRICS.items()
        if last[task][metric] <= first[task][metric]
    ]


def _cell(scores: dict[str, float], metric: str) -> str:
    if metric not in scores:
        return "missing"
    error = scores[metric.replace(",", "_stderr,")]
    return f"{scores[metric]:.1%} ± {error:.1%}"


def main() -> int:
    """Train, evaluate, show; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="the work folder")
    parser.add_argument("--engine", choices=("vllm", "transformers"), help="default: vllm if there")
    parser.add_argument("--slurm", action="store_true", help="submit to Slurm")
    given = parser.parse_args()

    folder = given.dir.absolute()
    engine = given.engine or ("vllm" if importlib.util.find_spec("vllm") else "transformers")
    subjects = corpus.subjects(_SEED)
    prepare(folder, subjects)
    coordinator = Coordinator(folder, "slurm" if given.slurm else "local", engine)
    evaluations: list[Evaluation] = []

    def show_loss(step: int, loss: float) -> None:
        if step % _LOSS_EVERY == 0:
            _console.print(f"step {step:5}   loss {loss:.3f}")

    def evaluate(step: int, checkpoint: Path) -> None:
        _console.rule(f"step {step} saved")
        evaluations.append(coordinator.call(step, checkpoint))

    train(
        corpus.documents(subjects, _SEED),
        folder / "checkpoints",
        Settings(seed=_SEED),
        on_step=show_loss,
        on_save=evaluate,
    )
    good = len(evaluations)
    bad = Settings().saves[-1] + 100
    evaluate(bad, spoil(folder / "checkpoints", Settings().saves[-1], bad))
    if given.slurm:
        for evaluation in evaluations:
            coordinator.wait(evaluation)
    _console.print(table(evaluations))
    wrong = complaints(evaluations[:good])
    if not wrong:
        coordinator.compare(*evaluations[good - 2 : good])
    if not coordinator.show_training(folder / "checkpoints"):
        wrong.append(f"no alarm is true of step {bad}, whose weights are spoilt")
    for complaint in wrong:
        _console.print(complaint, style="red", markup=False, soft_wrap=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
