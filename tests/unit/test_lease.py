"""Hard links keep a checkpoint for its run, whatever training deletes, and leave nothing behind."""

import os
import shutil
import time
from pathlib import Path

import pytest
from tests.decisions import DIR, NODES, facts, make_run, submitted, tasks
from tests.plans import CHECKPOINT
from tests.tiny import tiny_model

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs, lease
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress, write_run
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import UserError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    shutil.copytree(tiny_model(), tmp_path / "saved" / "step-1")
    return of(tmp_path / "saved" / "step-1", tmp_path)


def of(checkpoint: Path, folder: Path, nonce: str = "0", **stage: object) -> Run:
    made = make_run(
        checkpoint=checkpoints.inspect(checkpoint),
        nonce=nonce,
        settings=Settings.model_validate({"stage": stage}),
    )
    write_run(RunDir(folder / f"run-{nonce}"), made)
    return made


def take(run: Run, folder: Path) -> bool:
    return lease.take(RunDir(folder / f"run-{run.nonce}"), run)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_training_deletes_is_copied_from_the_lease(run: Run, tmp_path: Path) -> None:
    size = sum(path.stat().st_blocks for path in tmp_path.rglob("*.safetensors"))
    assert take(run, tmp_path)
    assert sum(p.stat().st_blocks for p in run.lease.rglob("*.safetensors")) == size
    assert all(Path(name).stat().st_nlink == 2 for name in run.checkpoint.weights)
    shutil.rmtree(run.checkpoint.path)
    assert not lease.is_deleted(run)
    kept = lease.leased(run)
    assert checkpoints.unchanged(kept)
    weights = StagedWeights(str(tmp_path), "r", "n1")
    with weights.hold():
        assert weights.copy(kept)
        assert weights.ready(run.checkpoint.identity)
    lease.end(run)
    assert names(tmp_path / "saved") == set()
    assert lease.is_deleted(run)


def test_a_file_that_is_replaced_is_scored_as_it_was(run: Run, tmp_path: Path) -> None:
    assert take(run, tmp_path)
    (weights,) = map(Path, run.checkpoint.weights)
    weights.with_suffix(".new").write_bytes(weights.read_bytes()[:-1])
    weights.with_suffix(".new").rename(weights)
    assert not checkpoints.unchanged(run.checkpoint)
    assert checkpoints.unchanged(lease.leased(run))


def test_no_lease_where_none_is_wanted_or_possible(tmp_path: Path) -> None:
    whole, linked = tmp_path / "saved" / "step-1", tmp_path / "saved" / "step-2"
    for folder in (whole, linked):
        shutil.copytree(tiny_model(), folder)
    for weights in linked.glob("*.safetensors"):
        weights.rename(tmp_path / weights.name)
        weights.symlink_to(tmp_path / weights.name)
    for run in (of(whole, tmp_path, keep=False), of(linked, tmp_path)):
        assert not take(run, tmp_path)
        assert lease.leased(run) == run.checkpoint
        assert not run.lease.parent.exists()


def test_one_file_of_another_owner_or_place_leaves_its_folder_as_it_is(
    run: Run, tmp_path: Path
) -> None:
    config = Path(run.checkpoint.path) / "config.json"
    target = tmp_path / "config.json"
    config.rename(target)
    config.symlink_to(target)
    assert not take(run, tmp_path)
    assert not run.lease.parent.exists()


def test_what_a_killed_process_left_is_removed_by_the_next(run: Run, tmp_path: Path) -> None:
    assert take(run, tmp_path)
    later = of(Path(run.checkpoint.path), tmp_path, "1")
    draft = run.lease.with_name(".r-2.0123.tmp")
    shutil.copytree(run.lease, draft, symlinks=True)
    not_ours = run.lease.parent / "kept"
    not_ours.mkdir()
    assert take(later, tmp_path)  # the first run goes on
    assert run.lease.is_dir()
    assert draft.is_dir()
    shutil.rmtree(tmp_path / "run-0")
    os.utime(draft, (time.time() - 7200,) * 2)
    lease.remove_abandoned(later.lease.parent)
    assert names(later.lease.parent) == {"kept", later.lease.name}
    results = RunDir(tmp_path / "run-1").results
    results.write_text("{}")
    lease.remove_abandoned(later.lease.parent)
    assert names(later.lease.parent) == {"kept"}


def test_a_lease_of_another_machine_stays_unless_its_run_is_seen_to_have_ended(
    run: Run, tmp_path: Path
) -> None:
    assert take(run, tmp_path)
    host, root = run.lease / "host", tmp_path / "run-0"
    assert host.read_text() == os.uname().nodename
    host.write_text("another")
    root.rename(tmp_path / "unseen")
    lease.remove_abandoned(run.lease.parent)
    assert run.lease.is_dir()
    os.utime(run.lease, (time.time() - 40 * 86400,) * 2)
    lease.remove_abandoned(run.lease.parent)
    assert not run.lease.exists()
    (tmp_path / "unseen").rename(root)
    assert take(run, tmp_path)
    (run.lease / "host").write_text("another")
    RunDir(root).results.write_text("{}")
    lease.remove_abandoned(run.lease.parent)
    assert not run.lease.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_a_private_file_in_a_folder_of_others_stays_readable(run: Run, tmp_path: Path) -> None:
    folder = Path(run.checkpoint.path)
    for file in folder.iterdir():
        file.chmod(0o640)
    os.chown(folder, 4242, -1)
    assert not take(run, tmp_path)
    checkpoints.inspect(folder)


def test_nothing_is_removed_behind_a_link(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "notes").mkdir(parents=True)
    (home / "notes" / "run").symlink_to(tmp_path / "gone")
    run.lease.parent.symlink_to(home)
    assert not take(run, tmp_path)
    lease.remove_abandoned(run.lease.parent)
    assert (home / "notes").is_dir()


def test_a_copy_of_a_deleted_checkpoint_says_that_it_was_deleted(run: Run, tmp_path: Path) -> None:
    shutil.rmtree(run.checkpoint.path)
    weights = StagedWeights(str(tmp_path), "r", "n1")
    with weights.hold(), pytest.raises(UserError, match="step-1 was deleted before it was copied"):
        weights.copy(run.checkpoint)


def ready() -> StageProgress:
    return StageProgress(state="ready", done_bytes=1, total_bytes=1, started=0, updated=0)


RUN = make_run()
KEEP = [jobs.keeper_name(RUN, 0, name) for name in NODES]
TRIAL = [jobs.trials_name(RUN, 0, name) for name in NODES]


def test_a_node_with_the_weights_goes_on_and_the_others_are_freed() -> None:
    waiting = [*tasks(KEEP[1], State.PENDING), *tasks(TRIAL[1], State.PENDING)]
    known = facts(
        submitted=submitted(*KEEP, TRIAL[1]),
        tasks=[*tasks(KEEP[0], State.RUNNING), *waiting],
        stages={(0, "n1"): ready()},
        deleted=True,
    )
    actions = decide(RUN, DIR, known)
    assert [a.job.name for a in actions if isinstance(a, d.Submit)] == [TRIAL[0]]
    cancelled = [id_ for a in actions if isinstance(a, d.Cancel) for id_ in a.job_ids]
    assert sorted(id_.partition("_")[0] for id_ in cancelled) == sorted([KEEP[1], TRIAL[1]])
    assert d.Release(0, "n2") in actions
    assert not any(isinstance(a, d.Finish | d.NewRound) for a in actions)


def test_without_weights_on_any_node_the_run_ends_at_once() -> None:
    planned = facts(submitted=submitted(*KEEP), tasks=tasks(KEEP[0], State.PENDING), deleted=True)
    building = facts(unbuilt=1, rounds=[], unpublished=[], deleted=True)
    for run, known in ((RUN, planned), (make_run(shards=[]), building)):
        (end,) = (a for a in decide(run, DIR, known) if isinstance(a, d.Finish))
        assert "checkpoint /ckpt was deleted before its weights were on every node" in end.why


def test_a_lease_stays_when_training_deletes_the_folder_of_a_step() -> None:
    checkpoint = CHECKPOINT.model_copy(update={"path": "/ckpts/run-1/iter_1000/hf"})
    run = make_run(checkpoint=checkpoint)

    assert run.lease.parent.parent == Path("/ckpts/run-1")
