"""A folder that is watched, with made-up runs and a made-up scheduler."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinate_eval.coordinator.cli.launch import watch
from coordinate_eval.coordinator.cli.launch.watch import Watch
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, Saved
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.new_run import Inputs
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.errors import UserError
from coordinate_eval.records import CheckpointFormat, Suite


class Site:
    """A folder that is watched, with made-up runs and a made-up scheduler."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "ckpts"
        self.folder.mkdir()
        self.settings = Settings(cluster="slurm", runs_dir=str(folder / "runs"))
        self.phases: dict[str, Phase] = {}
        self.created: dict[str, float] = {}
        self.tries: dict[str, int] = {}
        self.asked: list[str] = []
        self.wrong: dict[str, Exception] = {}
        self.wrong_for_all = ""
        self.starting: Callable[[str], int] = lambda name: 0
        for name, stand_in in {
            "find_all": lambda settings: ([self._run(n) for n in self.phases], []),
            "poll": lambda found, settings: ({}, ""),
            "start_run": self._start,
            "check_common": self._check,
        }.items():
            monkeypatch.setattr(watch, name, stand_in)
        monkeypatch.setattr(watch, "unchanged", lambda checkpoint: False)
        monkeypatch.setattr(state, "phase_of", lambda run_dir, run, *_, **__: self.phases[run.id])
        monkeypatch.setattr(
            resumes, "tries_without_progress", lambda run_dir: self.tries.get(run_dir.root.name, 0)
        )

    def saves(self, *steps: int) -> "Site":
        for step in steps:
            (self.folder / f"step-{step}").mkdir()
        return self

    def has_run(self, step: int | str, phase: Phase, *, age: float = -60, tries: int = 0) -> "Site":
        name = f"step-{step}" if isinstance(step, int) else step
        self.phases[name], self.created[name] = phase, time.time() - age
        self.tries[name] = tries
        return self

    def once(self, **options: Any) -> dict[str, str]:
        """Look; the state of each checkpoint as `--json` tells it."""
        made = Watch(
            self.folder,
            options.pop("pattern", Pattern(None)),
            self.settings,
            Suite(name="s", digest="d", include_path=[], datasets=[]),
            self._ask,
            **{"quiet_seconds": 0.0, **options},
        )
        self.status = made.once()
        self.seen = made
        return {Path(s.saved.path).name: s.state for s in made._seen()}

    def _ask(self, saved: Saved) -> Inputs:
        if saved.path.name in self.wrong:
            raise self.wrong[saved.path.name]
        made: Any = SimpleNamespace(run_id=saved.path.name)
        return made  # type: ignore[no-any-return]

    def _check(self, settings: Settings, suite: Suite, *, strict: bool) -> None:
        if self.wrong_for_all:
            raise UserError(self.wrong_for_all)

    def _start(self, inputs: Any) -> int:
        self.asked.append(inputs.run_id)
        status = self.starting(inputs.run_id)
        self.has_run(inputs.run_id, Phase.QUEUED)
        return status

    def _checkpoint(self, name: str) -> Any:
        """A checkpoint; of the name `step-1…step-3` an average of these and those between."""
        steps = [int(number) for number in re.findall(r"step-(\d+)", name)]
        path = str((self.folder / f"step-{steps[-1]}").resolve())
        made = SimpleNamespace(path=path, format=CheckpointFormat.TORCH, shares=[], parts=[])
        if len(steps) == 1:
            return made
        count = steps[-1] - steps[0] + 1
        kind = CheckpointFormat.AVERAGE
        return SimpleNamespace(path=name, format=kind, shares=[1.0] * count, parts=[made])

    def _run(self, name: str) -> Any:
        run_dir = SimpleNamespace(root=Path(self.settings.runs_dir) / name)
        run = SimpleNamespace(
            id=name,
            nonce=name,
            created=self.created[name],
            checkpoint=self._checkpoint(name),
            suite=SimpleNamespace(digest="d"),
            settings=self.settings,
        )
        return run_dir, run
