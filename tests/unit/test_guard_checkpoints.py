"""The checkpoint that a training begins from: the newest that is whole, finite and its own."""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from coordinate_eval.coordinator.training.guarding.attempts import (
    Attempt,
    Cancelled,
    Ended,
    GuardDir,
    What,
)
from coordinate_eval.coordinator.training.guarding.child import Child
from coordinate_eval.coordinator.training.guarding.healthy import (
    Candidates,
    Choice,
    Health,
    examine,
)


def save(folder: Path, step: int, shape: int = 4, value: float = 1.0) -> Path:
    path = folder / f"step-{step}"
    path.mkdir(parents=True)
    save_file({"w": np.full(shape, value, dtype=np.float32)}, path / "model.safetensors")
    return path


def at_once(argv: Sequence[str]) -> Child:
    """Look in this process, and hand the answer to one that only prints it."""
    said = examine(Path(argv[-1])).line()
    return Child([sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])", said], 1e6)


def candidates(folder: Path, kept: Path) -> Candidates:
    kept.mkdir(exist_ok=True)
    return Candidates(folder, None, kept, sys.executable, at_once)


def chosen(found: Candidates, spoiled: Sequence[tuple[int, float]] = ()) -> Choice:
    while (choice := found.choose(spoiled)) is None:
        time.sleep(0.001)  # the child process is about to end
    return choice


def test_a_whole_checkpoint_is_healthy_and_says_its_model(tmp_path: Path) -> None:
    found, same = examine(save(tmp_path, 1)), examine(save(tmp_path, 2, value=2.0))
    assert found.why == found.note == ""
    assert found.model == same.model
    assert found.model != examine(save(tmp_path, 3, shape=5)).model


def kept_by_the_saver(folder: Path) -> str:
    return str(json.loads((folder / ".good").read_text())["save"])


def test_a_saver_keeps_what_the_training_would_go_back_to(tmp_path: Path) -> None:
    saves, kept = tmp_path / "ckpts", tmp_path / "kept"
    for step, value in ((10, 1.0), (20, 2.0), (30, float("nan"))):
        (save(saves, step, value=value) / "_SUCCESS").touch()
    assert chosen(candidates(saves, kept)).step == 20
    assert not (saves / ".good").exists()  # no Saver fills it
    (saves / ".saver.json").touch()
    assert chosen(candidates(saves, kept)).step == 20
    assert kept_by_the_saver(saves) == "step-20"
    went_wrong = [(20, math.inf)]
    assert chosen(candidates(saves, kept), went_wrong).step == 10
    assert kept_by_the_saver(saves) == "step-10"
    candidates(saves, kept).go_on()
    assert kept_by_the_saver(saves) == "step-10"  # the newest is not finite
    candidates(saves, kept).go_on([(30, math.inf)])
    assert kept_by_the_saver(saves) == "step-20"


def test_a_torn_file_and_an_empty_folder_are_no_checkpoints(tmp_path: Path) -> None:
    file = save(tmp_path, 1) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert examine(file.parent).why
    (tmp_path / "step-2").mkdir()
    assert examine(tmp_path / "step-2").why
    (tmp_path / "step-2" / ".metadata").write_bytes(b"torn")
    (tmp_path / "step-2" / "__0_0.distcp").write_bytes(b"torn")
    assert examine(tmp_path / "step-2").why


def test_a_checkpoint_of_ranks_that_was_cut_short_is_torn(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save as save_ranks

    for step in (1, 2):
        save_ranks({"w": torch.ones(4096)}, checkpoint_id=tmp_path / f"step-{step}", no_dist=True)
    file = max((tmp_path / "step-2").glob("*.distcp"))
    os.truncate(file, file.stat().st_size // 2)
    assert examine(tmp_path / "step-1").why == ""
    assert "cut short" in examine(tmp_path / "step-2").why


def test_what_a_training_could_not_load_is_not_begun_from(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    good, bad = save(saves, 10), save(saves, 20)
    found = candidates(saves, tmp_path / "kept")
    assert chosen(found).path == str(bad)
    found.refuse(bad, "the training could not load it")
    assert chosen(found).path == str(good)


def test_a_format_that_nobody_reads_is_taken_as_it_is_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "state.own").write_bytes(b"x")
    found = examine(tmp_path)
    assert not found.why
    assert "not read" in found.note


def test_another_config_is_another_training_unless_it_only_names_versions(tmp_path: Path) -> None:
    first, second, third = (save(tmp_path, step) for step in (1, 2, 3))
    for path, rope, version in ((first, 1, "4"), (second, 1, "5"), (third, 2, "5")):
        config = {"rope_theta": rope, "transformers_version": version}
        (path / "config.json").write_text(json.dumps(config))
    assert examine(first).model == examine(second).model != examine(third).model


def test_the_newest_healthy_checkpoint_is_chosen_and_the_others_are_told(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    good = save(saves, 10)
    save(saves, 20, value=float("inf"))
    torn = save(saves, 30) / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-3])
    choice = chosen(candidates(saves, tmp_path / "kept"))
    assert (choice.path, choice.step) == (str(good), 10)
    assert [words.partition(":")[0] for words in choice.passed_over] == ["step-30", "step-20"]


def test_what_was_saved_after_the_training_went_wrong_is_passed_over_until_it_is_saved_again(
    tmp_path: Path,
) -> None:
    saves = tmp_path / "saves"
    good, bad = save(saves, 10), save(saves, 20)
    found = candidates(saves, tmp_path / "kept")
    assert chosen(found).path == str(bad)
    assert chosen(found, [(15, time.time() + 60)]).path == str(good)
    assert chosen(found, [(15, time.time() - 60)]).path == str(bad)


def test_what_a_training_saves_while_it_is_being_ended_does_not_count(tmp_path: Path) -> None:
    guard_dir, saves = GuardDir(tmp_path / "guard"), tmp_path / "saves"
    guard_dir.attempts.mkdir(parents=True)
    guard_dir.of_attempt(1).write_text(Attempt(number=1, decided=0).model_dump_json())
    cancelled = Cancelled(what=What.ROLLED_BACK, time=0, why="it rose", onset=15)
    guard_dir.of_attempt(1, "cancel").write_text(cancelled.model_dump_json())
    good, last_words = save(saves, 10), save(saves, 20)
    found = candidates(saves, tmp_path / "kept")
    assert chosen(found, guard_dir.spoiled()).path == str(good)
    end = guard_dir.of_attempt(1, "end")
    end.write_text(Ended(number=1, what=What.ROLLED_BACK, time=0).model_dump_json())
    assert chosen(found, guard_dir.spoiled()).path == str(good)
    os.utime(end, (0, 1))  # what is saved after the end is of the next attempt
    assert chosen(found, guard_dir.spoiled()).path == str(last_words)


def test_another_mode_makes_no_spoiled_checkpoint_good(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    good, bad = save(saves, 10), save(saves, 20)
    ended = time.time()
    for path in (bad, *bad.iterdir()):
        os.utime(path, (ended - 60, ended - 60))
        path.chmod(path.stat().st_mode ^ 0o010)  # now, after the end
    found = candidates(saves, tmp_path / "kept")
    assert chosen(found, [(15, ended - 30)]).path == str(good)
    assert found.newest_step(ended - 30) == 10


def test_checkpoints_of_another_training_are_refused(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    own = save(saves, 10)
    found = candidates(saves, tmp_path / "kept")
    assert chosen(found).path == str(own)
    save(saves, 20, shape=9)
    assert chosen(found).path == str(own)
    (own / "model.safetensors").unlink()
    own.rmdir()
    choice = chosen(found)
    assert not choice.path
    assert "is of another training" in choice.refused


def test_each_checkpoint_is_looked_at_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    path = save(saves, 10)
    looked: list[str] = []

    def look(argv: Sequence[str]) -> Child:
        looked.append(argv[-1])
        return at_once(argv)

    (tmp_path / "kept").mkdir()
    for _ in range(2):
        chosen(Candidates(saves, None, tmp_path / "kept", sys.executable, look))
    assert looked == [str(path)]
    save_file({"w": np.zeros(4, dtype=np.float32)}, path / "model.safetensors")
    chosen(Candidates(saves, None, tmp_path / "kept", sys.executable, look))
    assert len(looked) == 2


def test_a_look_that_dies_leaves_the_checkpoint_with_a_note(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    path = save(saves, 10)

    (tmp_path / "kept").mkdir()
    dies = [sys.executable, "-c", "exit(9)"]
    found = Candidates(saves, None, tmp_path / "kept", "", lambda argv: Child(dies, 1e6))
    assert chosen(found).path == str(path)
    (kept,) = (tmp_path / "kept").iterdir()
    assert "ended with 9" in Health.model_validate_json(kept.read_text()).note


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_checkpoint_that_another_user_has_put_there_is_passed_over(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    own, planted, exchanged = save(saves, 10), save(saves, 20), save(saves, 30)
    os.chown(planted, 4321, 4321)
    os.chown(exchanged / "model.safetensors", 4321, 4321)
    found = candidates(saves, tmp_path / "kept")
    choice = chosen(found)
    assert choice.path == str(own)
    assert all("belongs to" in words for words in choice.passed_over)
    os.chown(saves, 4321, 4321)  # a colleague's folder, which was named on purpose
    assert chosen(found).path == str(exchanged)
