"""What is done about the checkpoints of a folder that is watched."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.watching import Site
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.launch import watch, watch_command
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.errors import ClusterSilent, StoreSilent, UserError
from coordinate_eval.records import Suite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (None, "no folder directly in {folder} has a name that tells a step; for files and"),
        ("{step}/hf", "no name below {folder} has the form --pattern '{{step}}/hf'; for files"),
    ],
)
def test_where_nothing_is_found_a_pattern_is_asked_for(
    site: Site, capsys: pytest.CaptureFixture[str], pattern: str | None, words: str
) -> None:
    (site.folder / "run" / "step-1").mkdir(parents=True)
    assert site.once(pattern=Pattern(pattern), dry=True) == {}
    said = capsys.readouterr().err
    assert words.format(folder=site.folder) in said
    assert "--pattern such as '*step={step}.ckpt' or 'run-*/iter_{step}/hf'" in said


def test_the_latest_first_and_four_at_most(site: Site) -> None:
    site.saves(1, 2, 3, 10, 20).once()
    assert site.asked == ["step-20", "step-10", "step-3", "step-2"]


def told(asked: list[str]) -> list[str]:
    """What was asked for, without the digits that tell averages of other members apart."""
    return [re.sub(r" \([0-9a-f]{6}\)$", "", name) for name in asked]


def test_averages_of_the_last_ones_are_evaluated_beside_them(site: Site) -> None:
    site.saves(1, 2, 3, 4).once(last=3, most=9)
    assert told(site.asked) == [
        "step-4",
        "average of 3: step-2…step-4",
        "step-3",
        "average of 3: step-1…step-3",
        "step-2",
        "average of 2: step-1…step-2",
        "step-1",
    ]


def test_averages_are_evaluated_once_also_when_training_deletes_the_first(site: Site) -> None:
    site.saves(1, 2, 3).once(last=3, most=9)
    site.asked.clear()
    (site.folder / "step-1").rmdir()
    site.saves(4).once(last=3, most=9)

    assert told(site.asked) == ["step-4", "average of 3: step-2…step-4"]


def test_what_is_not_finished_is_in_no_average(site: Site) -> None:
    site.saves(1, 2, 3)
    (site.folder / "step-1" / "STABLE").touch()
    (site.folder / "step-3" / "STABLE").touch()
    site.once(last=5)

    assert told(site.asked) == ["step-3", "average of 2: step-1…step-3", "step-1"]


def test_runs_that_are_alive_count(site: Site) -> None:
    site.saves(1, 2, 3, 4).has_run(1, Phase.RUNNING).has_run(2, Phase.COMPLETE)
    site.once(most=2)
    assert site.asked == ["step-4"]
    site.once(most=2)
    assert site.asked == ["step-4"]


def test_only_the_newest_where_saves_come_faster_than_scores(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: dict[str, str] = {}
    monkeypatch.setattr(
        watch, "cancel_run", lambda run_dir, why: cancelled.update({run_dir.root.name: why})
    )
    site.saves(1, 2, 3, 4, 5).has_run(1, Phase.RUNNING).has_run(2, Phase.WAITING)
    site.once(newest=True)
    assert site.asked == ["step-5"]
    assert not cancelled  # the newest may be refused
    site.once(newest=True)
    assert site.asked == ["step-5"]
    assert cancelled == {"step-2": "overtaken by step-5"}


def test_suites_may_have_rates_of_their_own(site: Site) -> None:
    site.saves(500, 1000, 1500, 2000).once(steps=1000, most=9)
    assert site.asked == ["step-2000", "step-1000"]


def test_a_run_of_a_step_that_is_left_out_goes_on(site: Site) -> None:
    site.saves(500, 1000).has_run(500, Phase.INCOMPLETE).once(steps=1000)
    assert site.asked == ["step-1000", "step-500"]


def test_the_newest_is_one_whose_step_counts(site: Site) -> None:
    site.saves(1000, 2000, 2500).once(steps=1000, newest=True)
    assert site.asked == ["step-2000"]


def test_a_run_that_has_responses_is_not_overtaken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "cancel_run", lambda run_dir, why: pytest.fail(why))
    site.saves(1, 2).has_run(1, Phase.WAITING).has_run(2, Phase.WAITING)
    (Path(site.settings.runs_dir) / "step-1" / "outputs" / "a").mkdir(parents=True)
    assert site.once(newest=True)["step-1"] == "waiting for GPUs"


def test_each_once(site: Site) -> None:
    site.saves(1, 2)
    site.once()
    site.once()
    assert site.asked == ["step-2", "step-1"]


@pytest.mark.parametrize(
    ("phase", "age", "tries", "again"),
    [
        (Phase.COMPLETE, -60, 0, False),
        (Phase.CANCELLED, -60, 0, False),
        (Phase.SCORING, -60, 0, False),
        (Phase.UNKNOWN, -60, 0, False),
        # Another process has made it, and is about to submit its supervisor.
        (Phase.UNSUPERVISED, -1, 0, False),
    ],
)
def test_runs_that_are_left_alone(
    site: Site, phase: Phase, age: float, tries: int, again: bool
) -> None:
    site.saves(1).has_run(1, phase, age=age, tries=tries).once()
    assert bool(site.asked) is again


def test_a_run_that_stopped_is_continued_three_times(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time() + 1000
    monkeypatch.setattr(time, "time", lambda: now)
    for phase in (Phase.INCOMPLETE, Phase.UNSUPERVISED):
        for tries in (0, 2, 3):
            site.asked.clear()
            if not (site.folder / "step-1").exists():
                site.saves(1)
            site.has_run(1, phase, age=500, tries=tries)
            site.created["step-1"] = now - 500
            site.once()
            assert site.asked == (["step-1"] if tries < 3 else [])


def test_one_that_is_refused_stops_no_other_and_is_tried_three_times(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.saves(1, 2).wrong["step-2"] = UserError("a shard is missing")
    for look_ in range(5):
        states = site.once()
        assert site.status == (2 if look_ < 3 else 0)
        told = capsys.readouterr().err
        assert told.count("a shard is missing") == (1 if look_ < 3 else 0)
    assert site.asked == ["step-1"]
    assert states["step-2"] == "refused 3 times: a shard is missing"
    # Once it has changed it is another one.
    del site.wrong["step-2"]
    (site.folder / "step-2" / "model.safetensors").touch()
    site.once()
    assert site.asked == ["step-1", "step-2"]


def test_a_store_that_does_not_answer_is_asked_at_each_look(site: Site) -> None:
    site.saves(1).wrong["step-1"] = StoreSilent("no answer within 10 s")
    for _ in range(resumes.MOST_TRIES + 1):
        site.once()
        assert site.status == 2
    del site.wrong["step-1"]
    site.once()
    assert site.asked == ["step-1"]


def test_what_is_wrong_for_all_counts_for_none(site: Site) -> None:
    """A wrong setting or suite loses no checkpoint: all are tried when it is mended."""
    site.saves(1, 2).wrong_for_all = "setting engine is a section"
    for _ in range(resumes.MOST_TRIES + 1):
        with pytest.raises(UserError, match="is a section"):
            site.once()
    assert site.asked == []
    site.wrong_for_all = ""
    site.once()
    assert site.asked == ["step-2", "step-1"]


def test_other_settings_are_another_try(site: Site) -> None:
    site.saves(1).wrong["step-1"] = UserError("its context is too short")
    for _ in range(resumes.MOST_TRIES + 1):
        site.once()
    assert site.status == 0
    del site.wrong["step-1"]
    site.once()
    assert site.asked == []
    trial = site.settings.trial.model_copy(update={"cpus": 9})
    site.settings = site.settings.model_copy(update={"trial": trial})
    site.once()
    assert site.asked == ["step-1"]


def test_a_dry_run_names_each_checkpoint_and_is_no_try(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.saves(1, 2, 3).has_run(1, Phase.COMPLETE)
    refused = site.folder / "step-3"
    site.wrong["step-3"] = UserError(f"checkpoint {refused} has no weights")
    for _ in range(resumes.MOST_TRIES + 1):
        site.once(dry=True)
        assert capsys.readouterr().err.splitlines() == [
            f"checkpoint {refused} has no weights",
            f"{refused}: refused",
            f"{site.folder / 'step-2'}: to be evaluated",
            f"{site.folder / 'step-1'}: complete",
            "3 checkpoints: 1 refused, 1 to be evaluated, 1 complete",
        ]
    assert site.asked == []


def test_one_that_vanishes_is_no_error(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def gone(name: str) -> int:
        (site.folder / name).rmdir()
        raise UserError("it does not exist")

    site.saves(1).starting = gone
    site.once()
    assert (site.status, capsys.readouterr().err) == (0, "")


def test_a_silent_scheduler_ends_the_look(site: Site) -> None:
    def silent(name: str) -> int:
        raise ClusterSilent("no answer")

    site.saves(1, 2).starting = silent
    with pytest.raises(ClusterSilent):
        site.once()
    assert site.asked == ["step-2"]
    site.starting = lambda name: 0
    site.once()
    assert site.asked == ["step-2", "step-2", "step-1"]


def test_what_the_command_line_asks_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks: list[tuple[Settings, Suite]] = []

    class Spy:
        def __init__(
            self, _: Path, __: Pattern, settings: Settings, suite: Suite, *___: Any, **____: Any
        ) -> None:
            looks.append((settings, suite))

        def once(self, *, as_json: bool) -> int:
            return 0

    monkeypatch.setattr(watch_command, "Watch", Spy)
    judge = ["--judge-url", "http://judge:1/v1", "--judge-model", "a judge"]
    args = ["watch", str(tmp_path), "--once", *judge, "--only", "gsm8k", "--qos", "spare"]
    assert CliRunner().invoke(app, args).exit_code == 0
    ((settings, suite),) = looks
    assert (settings.judge.base_url, settings.judge.model) == ("http://judge:1/v1", "a judge")
    assert (settings.slurm.qos, settings.queue) == ("spare", True)
    assert [dataset.name for dataset in suite.datasets] == ["gsm8k"]
