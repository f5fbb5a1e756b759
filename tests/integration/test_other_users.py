"""What another user planted is never run. Root runs these: Mallory plants, Alice acts."""

import json
import os
import pwd
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.people import ALICE, MALLORY, People, give, people
from tests.tiny import tiny_model

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning.new_run import read_inputs
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import ForeignError
from coordinate_eval.records import DatasetResults, EngineSettings
from coordinate_eval.slurm.settings import SlurmSettings

SLURM = Path(__file__).parents[1] / "fakes" / "slurm-24.11"
SUITE = "datasets: [{name: sums, task: sums, items: 10, prior: {gpu_seconds: 1}}]\n"
JOBS = ("_supervise", "_score", "_metric", "_keep node", "_trial node", "_node node")


@pytest.fixture
def here() -> Iterator[People]:
    with people() as made:
        yield made


@pytest.fixture
def checkpoint(here: People) -> Path:
    """A checkpoint of Alice's."""
    return give(Path(shutil.copytree(tiny_model(), here.home / "step-1")), ALICE)


@pytest.fixture
def asked(here: People) -> Path:
    """A suite of Alice's."""
    return owned(here.home / "suite.yaml", SUITE, ALICE)


@pytest.fixture
def cluster(here: People) -> Path:
    """A cluster file, for plans that submit nothing."""
    return owned(here.home / "cluster.yaml", "nodes: [{name: n, gpus: 1}]\n", ALICE)


def owned(path: Path, text: str, uid: int, mode: int = 0o644) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return give(path, uid)


@pytest.fixture
def planted(here: People, checkpoint: Path, asked: Path) -> Path:
    """A run of just this checkpoint and suite, whose jobs leave a canary."""
    settings = Settings(
        engine=EngineSettings(name="simulated"), slurm=SlurmSettings(setup=(here.song,))
    )
    with _owner.for_show():  # root reads Alice's suite
        inputs = read_inputs(settings, suite.load(str(asked)), checkpoint)
    root = here.runs / inputs.run_id
    for name in ("logs", "model", "requests"):
        (root / name).mkdir(parents=True)
    run = Run(
        id=inputs.run_id, nonce="n", created=2e9, cluster="slurm",
        python=str(here.singer(here.malice / "python")), folder="/",
        checkpoint=inputs.checkpoint, suite=inputs.suite, settings=settings, tensor_parallel=1,
        gpu_type="", max_length=64, staged_bytes=1, exclusive=False, asks=[], shards=[],
    )  # fmt: skip
    _files.write_record(root / "run.json", run)
    for folder in (root, *(each for each in root.iterdir() if each.is_dir())):
        folder.chmod(0o777)  # whoever resumes it must be able to write
    return give(root, MALLORY)


def refused(here: People, *args: object, says: object = "61002", **more: Any) -> str:
    """Alice's command does nothing, and says why in one message."""
    done = here.alice(*args, **more)
    assert not here.sang(), f"{args} ran what Mallory planted"
    assert done.returncode == 2, f"{args}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    assert str(says) in done.stderr
    return done.stderr


def test_a_planted_run_is_refused_where_it_is_named(here: People, planted: Path) -> None:
    for args in (("resume", planted), ("cancel", planted), ("resume", planted.name)):
        assert str(planted) in refused(here, *args)
    assert not (planted / "cancelled").exists()
    for job in JOBS:
        name, *more = job.split()
        refused(here, name, planted, *more)
    assert {path.name for path in planted.iterdir()} == {"logs", "model", "requests", "run.json"}


def test_a_planted_run_is_passed_over_where_none_is_named(here: People, planted: Path) -> None:
    for command in ("resume", "cancel", "status"):
        refused(here, command, says="no runs under")
    for command in ("runs", "scores"):
        assert planted.name not in here.alice(command).stdout


def all_files(folder: Path) -> dict[Path, bytes]:
    """What is in a folder, and all below it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_who_asks_for_a_colleagues_run_gets_one_of_her_own(
    here: People, planted: Path, checkpoint: Path, asked: Path
) -> None:
    theirs = all_files(planted)
    shutil.copytree(SLURM, here.folder / "commands", dirs_exist_ok=True)
    (here.folder / "commands" / "sbatch").write_text("#!/bin/sh\ncat >/dev/null; echo 7\n")
    args = ("run", checkpoint, "--suite", asked)
    first = here.alice(*args, "--json")
    assert first.returncode == 0, first.stderr
    assert "61002" in first.stderr  # whose the other one is
    assert str(planted) in first.stderr
    mine = here.runs / f"{planted.name}-{ALICE}"
    assert json.loads(first.stdout)["dir"] == str(mine)
    assert mine.stat().st_uid == ALICE
    # From now on the name of both means hers, and asking again finds it.
    again = here.alice(*args)
    assert again.returncode == 0, again.stderr
    assert "resum" in again.stderr or "supervised" in again.stderr
    status = json.loads(here.alice("status", planted.name, "--json").stdout)
    assert status["dir"] == str(mine)
    listed = json.loads(here.alice("runs", "--json").stdout)
    assert [each["dir"] for each in listed] == [str(mine)]
    assert not here.sang()
    assert all_files(planted) == theirs


def test_a_run_planted_beside_that_of_a_colleague_is_refused(
    here: People, planted: Path, checkpoint: Path, asked: Path
) -> None:
    beside = planted.with_name(f"{planted.name}-{ALICE}")
    give(Path(shutil.copytree(planted, beside)), MALLORY)
    assert "--run-dir" in refused(here, "run", checkpoint, "--suite", asked)


def test_a_colleagues_run_is_shown_and_said_to_be_one(here: People, planted: Path) -> None:
    scores = DatasetResults.model_validate({"dataset": "sums", "items": 10} | {
        part: {} for part in ("groups", "higher_is_better", "n_shot", "n_samples", "versions")
    } | {"results": {"sums": {"acc,none": 0.25}}})  # fmt: skip
    (planted / "results").mkdir()
    _files.write_record(planted / "results" / "sums.json", scores)
    give(planted, MALLORY)
    status = here.alice("status", planted, "--json")
    assert "61002" in json.loads(status.stdout)["note"]
    assert "0.25" in here.alice("scores", planted).stdout
    assert not here.sang()


def plant_link(run: Path, people: People) -> None:
    moved = run.rename(people.home / "moved")
    run.symlink_to(moved)
    os.chown(run, MALLORY, MALLORY, follow_symlinks=False)


def plant_record(run: Path, people: People) -> None:
    theirs = owned(people.malice / "run.json", (run / "run.json").read_text(), MALLORY)
    (run / "run.json").unlink()
    (run / "run.json").symlink_to(theirs)


def plant_hard_link(run: Path, people: People) -> None:
    theirs = owned(people.malice / "run.json", (run / "run.json").read_text(), MALLORY)
    (run / "run.json").unlink()
    (run / "run.json").hardlink_to(theirs)


def plant_folder(run: Path, people: People) -> None:
    (run / "jobs").mkdir()
    give(run / "jobs", MALLORY)


def open_to_a_group(run: Path, people: People) -> None:
    os.chown(run, ALICE, MALLORY)
    run.chmod(0o775)


@pytest.mark.parametrize(
    "plant",
    [plant_link, plant_record, plant_hard_link, plant_folder, open_to_a_group],
    ids=lambda f: f.__name__,
)
def test_a_run_that_others_could_have_changed_is_not_resumed(
    here: People, planted: Path, plant: Callable[[Path, People], None]
) -> None:
    give(planted, ALICE)
    for each in (planted, *planted.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    plant(planted, here)
    refused(here, "resume", planted, says=planted)
    if plant is plant_link:  # not listed either
        refused(here, "resume", says="no runs under")
    else:
        done = here.alice("resume")
        assert not here.sang(), done.stderr


def test_ones_own_run_is_resumed(here: People, planted: Path) -> None:
    give(planted, ALICE)
    for each in (planted, *planted.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    assert here.alice("resume").returncode == 0
    assert here.sang()  # these are her own setup lines


def test_root_uses_only_roots(planted: Path, here: People) -> None:
    """As on storage that maps root to another user."""
    give(planted, ALICE)
    planted.chmod(0o755)
    with pytest.raises(ForeignError, match="root_squash"):
        _files.read(planted / "run.json")


@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_settings_that_others_wrote_are_not_read(here: People, planted: Path, mode: int) -> None:
    text = f"[slurm]\nsetup = [{json.dumps(here.song)}]\n"
    theirs = owned(here.malice / "c.toml", text, MALLORY, mode)
    refused(here, "runs", "--settings", theirs, says=theirs)
    refused(here, "runs", COORDINATE_EVAL_CONFIG=str(theirs))
    mine = owned(here.home / ".config" / "coordinate-eval.toml", text, ALICE, 0o666)
    refused(here, "runs", "--settings", mine, says="0666")
    mine.chmod(0o644)
    assert here.alice("runs", "--settings", mine).returncode == 0


def test_suites_and_tasks_that_others_wrote_are_not_loaded(
    here: People, checkpoint: Path, cluster: Path
) -> None:
    def plan(name: Path, **more: str) -> str:
        return refused(
            here, "run", checkpoint, "--suite", name, "--dry-run", "--cluster", cluster, **more
        )

    theirs = owned(here.malice / "suite.yaml", SUITE, MALLORY)
    plan(theirs)
    plan(owned(here.home / "extending.yaml", f"extends: {theirs}\n{SUITE}", ALICE))
    tasks = here.malice / "tasks"
    owned(tasks / "utils.py", "", MALLORY)
    plan(owned(here.home / "including.yaml", f"include_path: {tasks}\n{SUITE}", ALICE))
    mine = here.home / "tasks"
    owned(mine / "x.yaml", "task: sums\n", ALICE)
    os.chown(mine, ALICE, ALICE)
    owned(mine / "utils.py", "", MALLORY)
    plan(owned(here.home / "mixed.yaml", f"include_path: {mine}\n{SUITE}", ALICE))
    (mine / "utils.py").unlink()
    (mine / "utils.py").symlink_to(tasks / "utils.py")
    plan(here.home / "mixed.yaml")
    (mine / "utils.py").unlink()
    task = owned(here.malice / "task.yaml", "task: sums\n", MALLORY)
    naming = SUITE.replace("task: sums", f"task: {task}")
    plan(owned(here.home / "naming.yaml", naming, ALICE))
    done = here.alice("run", checkpoint, "--suite", here.home / "mixed.yaml", "--dry-run",
                      "--cluster", cluster)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_plan_that_others_wrote_is_not_followed(
    here: People, checkpoint: Path, asked: Path, cluster: Path
) -> None:
    args = ("run", checkpoint, "--suite", asked)
    done = here.alice(*args, "--dry-run", "--cluster", cluster, "--json")
    theirs = owned(here.malice / "plan.json", done.stdout, MALLORY)
    refused(here, *args, "--plan", theirs)


def test_names_mean_nothing_that_lies_in_the_checkpoint(
    here: People, checkpoint: Path, cluster: Path, planted: Path
) -> None:
    """Alice has copied the checkpoint, so all of it is her own."""
    own = give(planted.rename(checkpoint / planted.name), ALICE)
    assert own.is_dir()
    owned(checkpoint / "base", SUITE, ALICE)
    done = here.alice("run", ".", "--dry-run", "--cluster", cluster, "--json", cwd=checkpoint)
    assert json.loads(done.stdout)["suite"]["name"] == "base", done.stderr


@pytest.mark.parametrize("uid", [MALLORY, ALICE])
def test_built_prompts_of_others_are_not_used(
    here: People, checkpoint: Path, asked: Path, uid: int
) -> None:
    """Mallory made Alice's folder of a shared cache, or Alice opened it to all."""
    cache = here.folder / "cache"
    planted = cache / f"requests-{ALICE}"
    planted.mkdir(parents=True)
    cache.chmod(0o1777)
    planted.chmod(0o777)
    give(planted, uid)
    refused(
        here, "run", checkpoint, "--suite", asked, "--cluster", "local", "--dry-run", says=planted,
        COORDINATE_EVAL_CACHE_DIR=str(cache),
    )  # fmt: skip


def test_a_link_of_another_user_hides_no_run(here: People, planted: Path) -> None:
    """Its name can be guessed: it is made from the checkpoint and the suite."""
    give(planted, ALICE)
    for each in (planted, *planted.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    moved = planted.rename(here.home / "run")
    planted.symlink_to(moved)
    os.chown(planted, MALLORY, MALLORY, follow_symlinks=False)
    assert "is not followed" in refused(here, "resume", planted.name)
    assert here.alice("resume", moved).returncode == 0


MODULES = ("coordinate_eval", "typer", "click", "yaml", "numpy", "pydantic", "encodings", "json")


@pytest.mark.parametrize("flags", [(), ("-P",)])
def test_no_module_of_the_working_directory_is_imported(
    here: People, checkpoint: Path, cluster: Path, flags: tuple[str, ...]
) -> None:
    song = f"open({str(here.canary)!r}, 'a').write('x')\n"
    for module in MODULES[not flags :]:
        owned(checkpoint / f"{module}.py", song, ALICE)
    args = ("run", ".", "--dry-run", "--cluster", cluster)
    done = here.alice(*args, cwd=checkpoint, flags=flags)
    assert done.returncode == 0, done.stderr
    assert not here.sang()


def test_a_team_names_whose_suites_it_shares(here: People, checkpoint: Path, cluster: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    tasks = here.malice / "tasks"
    owned(tasks / "utils.py", "", nobody)
    os.chown(tasks, nobody, nobody)
    theirs = owned(here.malice / "suite.yaml", f"include_path: {tasks}\n{SUITE}", nobody)
    args = ("run", checkpoint, "--suite", theirs, "--dry-run", "--cluster", cluster)
    assert "trusted_users" in refused(here, *args, says="nobody")
    done = here.alice(*args, COORDINATE_EVAL_TRUSTED_USERS='["nobody"]')
    assert done.returncode == 0, done.stderr
    # A node or a container may have no list of users.
    done = here.alice(*args, COORDINATE_EVAL_TRUSTED_USERS=f'["{nobody}"]')
    assert done.returncode == 0, done.stderr
    # Their runs and settings stay theirs.
    mine = owned(here.malice / "config.toml", 'trusted_users = ["nobody"]', nobody)
    refused(here, *args, "--settings", mine, says="nobody")
    refused(here, *args, says="no user 'x'", COORDINATE_EVAL_TRUSTED_USERS='["x"]')
