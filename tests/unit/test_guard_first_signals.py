"""Before a rollback, first signals of few checkpoints tell from which on the scores have fallen."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.first_signal import FirstSignal, Main, Signal
from coordinate_eval.coordinator.training.advice import Save
from coordinate_eval.coordinator.training.guarding.attempts import Evaluated, GuardDir, Guarded
from coordinate_eval.coordinator.training.guarding.first_signals import (
    FirstSignals,
    is_worse,
)
from coordinate_eval.coordinator.training.guarding.policy import Policy

STEPS = tuple(range(100, 1700, 100))


def main(value: float, stderr: float | None = 0.02, items: int = 500, **more: Any) -> Main:
    given = {"metric": "acc", "higher_is_better": True, **more}
    return Main(value=value, stderr=stderr, items=items, **given)


class Site:
    """A made cluster: a run that is submitted gives its first signal at once, or does not."""

    def __init__(self, folder: Path, scores: Callable[[int], float | None]) -> None:
        self.scores, self.commands = scores, list[Sequence[str]]()
        for name in ("attempts", "logs", "runs"):
            (folder / name).mkdir(parents=True)
        self.dir = GuardDir(folder)
        self.guarded = Guarded(
            name="t", nonce="0", created=0, script="/t.sbatch", folder=str(folder),
            checkpoints="/c", policy=Policy(suite="base"), python="python",
            settings=Settings(runs_dir=str(folder / "runs")),
        )  # fmt: skip

    @property
    def evaluated(self) -> list[int]:
        """The steps that were evaluated, in their order."""
        return [int(each[-2].rpartition("-")[2]) for each in self.commands if "_evaluate" in each]

    def start(self, argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        self.commands.append(argv)
        code = 0
        if "_evaluate" in argv:
            value = self.scores(int(argv[-2].rpartition("-")[2]))
            code = self._begin(Path(argv[-1]), value, log)
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])

    def _begin(self, run: Path, value: float | None, log: Path) -> int:
        if value is None:
            log.write_text("coordinate-eval: no GPU is free\n")
            return 1
        run.mkdir()
        (run / "run.json").write_text("{}")
        if value >= 0:
            signal = Signal(
                items=500, of_items=9000, tasks=1, of_tasks=1, estimates={}, main=main(value)
            )
            found = FirstSignal(run="r", seconds=1, datasets={"mmlu": signal})
            (run / "first-signal.json").write_text(found.model_dump_json(by_alias=True))
        return 0

    def end(self, known: dict[int, Literal["healthy", "fallen"]] | None = None) -> Evaluated:
        """Ask, with a new guard each time, until there is an answer."""
        saves = [Save(step, Path(f"/c/step-{step}"), (known or {}).get(step)) for step in STEPS]
        now, signals = 1000.0, FirstSignals(self.dir, self.guarded, self.start)
        for number in range(200):
            if number % 3 == 2:  # the guard is killed
                signals = FirstSignals(self.dir, self.guarded, self.start)
            if (found := signals.compare(1, saves, now)) is not None:
                signals.close()
                return found
            for child in signals._children.values():
                child.wait()
            now += 10.0
        raise AssertionError("no end")


def test_where_the_newest_checkpoint_has_not_fallen_three_runs_say_so(tmp_path: Path) -> None:
    site = Site(tmp_path / "guard", lambda step: 0.2 + step / 10_000)
    found = site.end()
    assert found.onset is None
    assert sorted(site.evaluated) == [100, 900, 1600]
    assert found.words == "first signals: step 100: healthy, step 900: healthy, step 1600: healthy"


@pytest.mark.parametrize("bad", range(200, 1700, 100))
def test_few_runs_find_the_newest_checkpoint_before_the_fall(tmp_path: Path, bad: int) -> None:
    site = Site(tmp_path / "guard", lambda step: 0.5 if step < bad else 0.25)
    found = site.end()
    newest = max(step for step in STEPS if step < bad)
    assert found.onset == newest + 1
    assert len(site.evaluated) == len(set(site.evaluated)) <= 6
    assert sum("cancel" in each for each in site.commands) == len(site.evaluated)


def test_one_low_score_between_healthy_ones_is_no_fall(tmp_path: Path) -> None:
    site = Site(tmp_path / "guard", lambda step: 0.35 if step == 900 else 0.5)
    assert site.end().onset is None
    assert sorted(site.evaluated) == [100, 900, 1600]


def test_a_guard_that_leaves_lets_its_runs_be_cancelled(tmp_path: Path) -> None:
    site = Site(tmp_path / "guard", lambda step: -1.0)
    cancelled = tmp_path / "cancelled"
    write = f"import time; time.sleep(0.1); open({str(cancelled)!r}, 'a').write('x')"

    def start(argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        if "cancel" in argv:
            return subprocess.Popen([sys.executable, "-c", write])
        return site.start(argv, log)

    saves = [Save(step, Path(f"/c/step-{step}"), None) for step in STEPS]
    signals = FirstSignals(site.dir, site.guarded, start)
    assert signals.compare(1, saves, 0.0) is None
    assert signals.compare(1, saves, 10_000.0) is not None
    signals.close()
    assert cancelled.read_text() == "xxx"


def test_what_is_known_of_the_scores_needs_no_run(tmp_path: Path) -> None:
    site = Site(tmp_path / "guard", lambda step: 0.5)
    assert site.end({1600: "healthy"}).onset is None
    assert site.evaluated == []


def test_without_a_free_gpu_the_training_goes_back_as_it_would_without(tmp_path: Path) -> None:
    site = Site(tmp_path / "guard", lambda step: None)
    found = site.end()
    assert found.onset is None
    assert "step 1600: no GPU is free" in found.words


def test_a_run_that_gives_no_signal_holds_no_training_up(tmp_path: Path) -> None:
    scores = {**dict.fromkeys(STEPS, -1.0), 100: 0.5, 900: 0.5, 1600: 0.2}
    site = Site(tmp_path / "guard", scores.__getitem__)
    found = site.end()
    assert found.onset == 901  # of what is not known, the safe side counts
    assert "the others gave no answer within" in found.words


def test_scores_have_fallen_by_more_than_their_errors_together_or_one_by_half() -> None:
    older = {name: main(0.5) for name in "abcd"}
    assert not is_worse({name: main(0.47) for name in "abcd"}, older)
    assert is_worse({name: main(0.45) for name in "abcd"}, older)
    assert not is_worse({**older, "a": main(0.42)}, older)
    assert is_worse({**older, "a": main(0.2)}, older)
    assert is_worse({"a": main(0.0, stderr=0.0)}, older)
    assert is_worse({"a": main(float("nan"))}, older)
    assert not is_worse({"e": main(0.0)}, older)
    perplexity = {"p": main(10.0, stderr=0.2, metric="word_perplexity", higher_is_better=False)}
    risen = {"p": perplexity["p"].model_copy(update={"value": 14.0})}
    assert is_worse(risen, perplexity)
    assert not is_worse(perplexity, risen)
