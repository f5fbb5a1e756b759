"""`advise` says whether a training goes on, with the evidence."""

import json
from pathlib import Path

from tests.trainings import TRAINING, call, run_of


def reports(steps: int, wrong: int | None = None) -> str:
    """A log whose loss falls, and jumps at a step."""
    jump = {n: 3 * (wrong is not None and n >= wrong) for n in range(1, steps + 1)}
    losses = {n: 2 + 5 / n**0.5 + 0.01 * (n % 7) + rise for n, rise in jump.items()}
    return "".join(f"step {n} loss {loss}\n" for n, loss in losses.items())


def checkpoints(home: Path, *steps: int) -> Path:
    folder = home / "ckpts"
    for step in steps:
        (folder / f"step-{step}").mkdir(parents=True)
        (folder / f"step-{step}" / "model.custom").write_text("of a format that nobody reads")
    return folder


def test_a_training_whose_loss_jumped_goes_back(tmp_path: Path) -> None:
    folder = checkpoints(tmp_path, 200, 400, 600)
    (tmp_path / "log").write_text(reports(600, wrong=450))

    told = call(tmp_path, "advise", str(folder), "--log", str(tmp_path / "log"), "--json")
    shown = call(tmp_path, "advise", str(folder), "--log", str(tmp_path / "log"))

    found = json.loads(told.stdout)
    assert told.exit_code == shown.exit_code == 1
    assert (found["go"], found["onset"]) == ("back", 450)
    assert found["checkpoint"] == found["evaluate"] == str(folder / "step-400")
    assert found["skip"] == [450, 600]
    assert "go back to" in shown.stdout and "--first-signal" in shown.stdout


def test_a_healthy_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(reports(600))

    told = call(tmp_path, "advise", str(tmp_path), "--log", str(tmp_path / "log"))

    assert told.exit_code == 0 and "go on" in told.stdout


def test_without_a_loss_and_scores_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing\n")

    told = call(tmp_path, "advise", str(tmp_path), "--log", str(tmp_path / "log"))

    assert told.exit_code == 2 or "nothing is known" in str(told.exception)


def test_without_a_checkpoint_before_it_a_person_decides(tmp_path: Path) -> None:
    folder = checkpoints(tmp_path, 500)
    (tmp_path / "log").write_text(reports(600, wrong=450))

    told = call(tmp_path, "advise", str(folder), "--log", str(tmp_path / "log"), "--json")

    assert told.exit_code == 1 and json.loads(told.stdout)["go"] == "ask"


def test_a_rise_that_is_not_decided_yet_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(reports(600) + "step 601 loss nan\n")

    told = call(tmp_path, "advise", str(tmp_path), "--log", str(tmp_path / "log"))

    assert told.exit_code == 0
    assert "look again" in told.stdout and "not clear yet" in told.stdout


def test_a_run_that_ended_without_scores_makes_no_checkpoint_healthy(tmp_path: Path) -> None:
    run_of(tmp_path, 100, {"a": 0.5})
    run_of(tmp_path, 200, {})

    told = call(tmp_path, "advise", TRAINING)

    assert "nothing is wrong up to step 100" in told.stdout


def test_a_folder_that_is_not_there_is_named_and_paths_are_quoted(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(reports(600, wrong=450))
    folder = checkpoints(tmp_path / "my runs", 400)

    gone = call(tmp_path, "advise", str(tmp_path / "gone"), "--log", str(tmp_path / "log"))
    told = call(tmp_path, "advise", str(folder), "--log", str(tmp_path / "log"))

    assert gone.exit_code == 1 and "gone is no folder" in gone.output
    assert f"coordinate-eval '{folder}/step-400' --first-signal" in told.stdout
