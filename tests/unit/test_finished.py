"""When a checkpoint is finished: markers, trackers, and time."""

import os
import shutil
from pathlib import Path

import pytest
from tests.tiny import tiny_model
from tests.watching import Site
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, look
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.new_run import read_inputs
from coordinate_eval.errors import Unfinished, UserError
from coordinate_eval.records import Suite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


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
        assert looked["step-200"] == "not marked as finished: latest does not name it"
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
