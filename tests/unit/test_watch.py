"""What is a checkpoint, when it is finished, and what is done about it."""

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import tiny_model
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.launch import watch
from coordinate_eval.coordinator.cli.launch.watch import Watch
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, Saved, is_young, look
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.new_run import Inputs, read_inputs
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.errors import ClusterSilent, Unfinished, UserError
from coordinate_eval.records import CheckpointFormat, Suite


def names(folder: Path, pattern: str | None = None) -> list[str]:
    return [str(s.path.relative_to(folder)) for s in look(folder, Pattern(pattern))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ckpts"
    for name in (
        "step-9", "step-100", "step-20", ".step-30", "tmp-step-40", "step-50.tmp", "latest",
        "copy-step-90.backup",
        "logs", "deep/iter_7/hf", "deep/iter_70/hf", "deep/.iter_8/hf", "global_step60-partial",
    ):  # fmt: skip
        (made / name).mkdir(parents=True)
    (made / "step-70.pt").touch()
    (made / "step-80.evaluation.log").touch()
    return made


def test_folders_whose_names_tell_a_step(folder: Path) -> None:
    assert names(folder) == ["step-100", "step-20", "step-9"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("step-{step}", ["step-100", "step-20", "step-9"]),
        ("step-{step}.pt", ["step-70.pt"]),
        ("step-{step}*", ["step-100", "step-50.tmp", "step-20", "step-9"]),
        ("deep/iter_{step}/hf", ["deep/iter_70/hf", "deep/iter_7/hf"]),
        ("*/iter_{step}/*", ["deep/iter_70/hf", "deep/iter_7/hf"]),
        ("latest", ["latest"]),
        ("none-{step}", []),
    ],
)
def test_patterns(folder: Path, pattern: str, found: list[str]) -> None:
    assert names(folder, pattern) == found


@pytest.mark.parametrize("pattern", ["", "/step", "../{step}", "a//b", "{step}-{step}", "a/"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(UserError, match="give names below the folder"):
        Pattern(pattern)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        look(tmp_path / "nowhere", Pattern(None))


def test_a_folder_is_as_young_as_what_was_done_in_it_last(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-1"
    checkpoint.mkdir()
    file = checkpoint / "model.safetensors"
    file.touch()
    os.utime(file, (1, 1))  # a copy with the original's times
    (saved,) = look(tmp_path, Pattern(None))
    assert saved.changed > time.time() - 100
    assert not saved.quiet(100)
    assert saved.quiet(0)


def test_a_lease_does_not_make_a_checkpoint_young(tmp_path: Path) -> None:
    file = tmp_path / "step-1.pt"
    file.touch()
    os.utime(file, (1, 1))
    assert is_young(file)
    (tmp_path / "lease").hardlink_to(file)
    assert not is_young(file)


@pytest.mark.parametrize(("age", "quiet"), [(59, False), (61, True), (-300, False), (-1e6, True)])
def test_times_of_another_clock(age: float, quiet: bool) -> None:
    assert Saved(Path("x"), 1, time.time() - age, "").quiet(60) is quiet


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


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (None, "no name directly in {folder} tells a step; for others, or deeper ones, give a"),
        ("{step}/hf", "no name below {folder} has the form --pattern '{{step}}/hf'; for others"),
    ],
)
def test_where_nothing_is_found_a_pattern_is_asked_for(
    site: Site, capsys: pytest.CaptureFixture[str], pattern: str | None, words: str
) -> None:
    (site.folder / "run" / "step-1").mkdir(parents=True)
    assert site.once(pattern=Pattern(pattern), dry=True) == {}
    said = capsys.readouterr().err
    assert words.format(folder=site.folder) in said
    assert "--pattern such as 'run-*/iter_{step}/hf'" in said


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


def test_what_is_still_written(site: Site) -> None:
    assert site.saves(1).once(quiet_seconds=60.0) == {"step-1": "being written"}
    assert site.asked == []
    assert site.status == 0


def test_a_marker_says_what_is_finished_and_at_once(site: Site) -> None:
    site.saves(1, 2, 3, 4)
    (site.folder / "step-1/.done").touch()
    (site.folder / "step-2.done").touch()  # beside it
    (site.folder / "step-3/STABLE").touch()  # not the marker that was named
    looked = site.once(marker=".done", quiet_seconds=600.0)
    assert site.asked == ["step-2", "step-1"]
    assert looked["step-3"] == looked["step-4"] == "not marked as finished: it has no .done"


@pytest.mark.parametrize("marker", ["STABLE", "_SUCCESS"])
def test_known_markers_are_recognized_once_there_is_one(site: Site, marker: str) -> None:
    site.saves(1, 2).once(quiet_seconds=600.0)
    assert site.asked == []  # nothing is marked: the rule of --quiet
    (site.folder / f"step-1/{marker}").touch()
    looked = site.once(quiet_seconds=600.0)
    assert site.asked == ["step-1"]
    assert looked["step-2"] == f"not marked as finished: it has no {marker}"


def test_a_marker_may_name_the_last_finished_checkpoint(site: Site) -> None:
    site.saves(100, 200, 300)
    tracker = site.folder / "latest"
    for text in ("global_step100", "100\n"):
        tracker.write_text(text)
        looked = site.once(marker="latest", quiet_seconds=600.0)
        assert site.asked == ["step-100"]
        assert looked["step-200"] == "not marked as finished: it has no latest"
    tracker.unlink()
    tracker.symlink_to("step-200")
    site.once(marker="latest", quiet_seconds=600.0)
    assert site.asked == ["step-100", "step-200"]
    tracker.unlink()
    os.mkfifo(tracker)
    site.once(marker="latest", quiet_seconds=600.0)
    assert site.asked == ["step-100", "step-200"]


@pytest.mark.parametrize(
    ("tracker", "content", "name"),
    [
        ("latest_checkpointed_iteration.txt", "200", "iter_{:07d}"),
        ("latest", "global_step200", "global_step{}"),
    ],
)
def test_a_trainer_s_tracker_names_the_last_finished_checkpoint(
    tmp_path: Path, tracker: str, content: str, name: str
) -> None:
    for step in (100, 200, 300):
        (tmp_path / "a" / name.format(step)).mkdir(parents=True)
    pattern = Pattern(f"*/{name.partition('{')[0]}{{step}}")
    assert {s.marked for s in look(tmp_path, pattern)} == {False}
    (tmp_path / "a" / tracker).write_text(content)
    found = {s.step: (s.marked, s.lacks) for s in look(tmp_path, pattern)}
    assert found == {100: (True, None), 200: (True, None), 300: (False, tracker)}


def test_a_link_to_the_latest_says_nothing_of_others(tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"step-{step}").mkdir()
    (tmp_path / "latest").symlink_to("step-100")
    assert {s.lacks for s in look(tmp_path, Pattern(None))} == {None}


def test_what_ranks_write_into_folders_of_their_own_counts(tmp_path: Path) -> None:
    (tmp_path / "iter_0000100" / "mp_rank_00").mkdir(parents=True)
    (before,) = look(tmp_path, Pattern(None))
    (tmp_path / "iter_0000100" / "mp_rank_00" / "model_optim_rng.pt").write_text("weights")
    (after,) = look(tmp_path, Pattern(None))
    assert after.state != before.state


def test_what_a_run_that_waits_cannot_use_yet_may_still_be_being_written(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-100"
    shutil.copytree(tiny_model(), checkpoint)
    (checkpoint / "model.safetensors").rename(tmp_path / "model.safetensors")
    suite = Suite(name="s", digest="d", datasets=[])
    with pytest.raises(Unfinished, match="if it is being written, ask again afterwards"):
        read_inputs(Settings(queue=True), suite, checkpoint)
    with pytest.raises(UserError) as caught:
        read_inputs(Settings(), suite, checkpoint)
    assert not isinstance(caught.value, Unfinished)
    (tmp_path / "model.safetensors").rename(checkpoint / "model.safetensors")
    assert read_inputs(Settings(queue=True), suite, checkpoint).checkpoint.path == str(checkpoint)


def test_a_marker_counts_for_the_run_that_has_it(tmp_path: Path) -> None:
    for run in "ab":
        for step in (1, 2):
            (tmp_path / f"{run}/step_{step}/hf").mkdir(parents=True)
    (tmp_path / "a/step_1/STABLE").touch()
    found = look(tmp_path, Pattern("*/step_{step}/hf"))
    told = {str(each.path.relative_to(tmp_path)): (each.marked, each.lacks) for each in found}
    assert told == {
        "a/step_1/hf": (True, None), "a/step_2/hf": (False, "STABLE"),
        "b/step_1/hf": (False, None), "b/step_2/hf": (False, None),
    }  # fmt: skip


def test_what_a_format_writes_last_is_a_marker(tmp_path: Path) -> None:
    for step in ("step-1", "step-2/pytorch_model_fsdp_0", "step-3"):
        (tmp_path / step).mkdir(parents=True)
        (tmp_path / step / "__0_0.distcp").touch()
    (tmp_path / "step-1/.metadata").touch()
    told = {each.path.name: each.lacks for each in look(tmp_path, Pattern("step-{step}"))}
    inside = "pytorch_model_fsdp_0/.metadata"
    assert told == {"step-1": None, "step-2": inside, "step-3": ".metadata"}


def test_a_marker_is_a_name(site: Site) -> None:
    for marker in ("", "..", "../STABLE"):
        command = ["watch", str(site.folder), "--once", "--marker", marker]
        assert "give the name of a file" in str(CliRunner().invoke(app, command).exception)


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

    monkeypatch.setattr(watch, "Watch", Spy)
    judge = ["--judge-url", "http://judge:1/v1", "--judge-model", "a judge"]
    args = ["watch", str(tmp_path), "--once", *judge, "--only", "gsm8k", "--qos", "spare"]
    assert CliRunner().invoke(app, args).exit_code == 0
    ((settings, suite),) = looks
    assert (settings.judge.base_url, settings.judge.model) == ("http://judge:1/v1", "a judge")
    assert (settings.slurm.qos, settings.queue) == ("spare", True)
    assert [dataset.name for dataset in suite.datasets] == ["gsm8k"]
