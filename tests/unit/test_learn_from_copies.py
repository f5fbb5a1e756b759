"""Measurements of copies of the weights, from keepers and trials to the next plan."""

import time
from pathlib import Path

import pytest
from tests.measured_runs import measured_run, record
from tests.staging import checkpoint

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Node
from coordinate_eval.coordinator.inputs.layers import Layer, resolve
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.planning.offer import offer_of_cluster
from coordinate_eval.coordinator.planning.plan_run import (
    nodes_for,
    plan_run,
)
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Round,
    RoundNode,
    StageProgress,
)
from coordinate_eval.coordinator.supervisor import learn_from_run
from coordinate_eval.coordinator.workers import trial
from coordinate_eval.coordinator.workers.on_node import keeper
from coordinate_eval.coordinator.workers.on_node.keeper import run_keeper
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import UserError
from coordinate_eval.priors import this_machine
from coordinate_eval.priors.observations import (
    StageSeen,
)
from coordinate_eval.priors.staging import Link
from coordinate_eval.records import (
    Dataset,
    Suite,
)


@pytest.fixture
def staging_run(tmp_path: Path) -> RunDir:
    """A run of a checkpoint that exists, on two nodes that are released."""
    run_dir = measured_run(tmp_path)
    source = checkpoint(tmp_path / "step 1")
    _files.write_record(
        run_dir.run, record(run_dir).model_copy(update={"checkpoint": source, "staged_bytes": 1})
    )
    nodes = [RoundNode(name=n, gpu_type="h100", trials=1) for n in "nm"]
    _files.write_record(run_dir.round(0), Round(number=0, created=0, nodes=nodes, minutes=30))
    for node in "nm":
        _files.write(run_dir.released(0, node), "")
    return run_dir


def stages_of(run_dir: RunDir) -> dict[str, StageSeen]:
    seen = learn_from_run.collect_observations(run_dir, record(run_dir))
    return {s.node: s for s in seen if isinstance(s, StageSeen)}


def weights_of(run_dir: RunDir, node: str) -> StagedWeights:
    run = record(run_dir)
    return StagedWeights(run.settings.stage.root, run.id, node)


def test_keepers_measure_their_copies(staging_run: RunDir) -> None:
    for node in "nm":
        assert run_keeper(staging_run, node, 0, 30) == 0
    seen = stages_of(staging_run)
    assert seen.keys() == {"n", "m"}
    run = record(staging_run)
    for one in seen.values():
        assert one.bytes == run.checkpoint.bytes
        assert one.at_once == pytest.approx(1, abs=0.5)  # one after the other
        assert one.storage == this_machine.storage_of(run.checkpoint.path)
        assert (one.converted, one.run, one.conditions.gpu) == (False, "step-1-abc", "h100")


def test_weights_that_were_there_already_teach_nothing(staging_run: RunDir) -> None:
    place = weights_of(staging_run, "n")
    with place.hold():
        assert place.copy(record(staging_run).checkpoint, lambda _: None)
        assert run_keeper(staging_run, "n", 0, 30) == 0
    assert stages_of(staging_run) == {}


def test_a_copy_that_fails_teaches_nothing(staging_run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "step 1" / "model.safetensors").unlink()
    with pytest.raises(UserError):
        run_keeper(staging_run, "n", 0, 30)
    assert stages_of(staging_run) == {}


def test_a_trial_in_a_keepers_place_measures_its_copy(
    staging_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "KEEPER_PATIENCE_SECONDS", 0.0)
    assert trial.run_trial(staging_run, "n", 0, 60) == 0
    assert stages_of(staging_run).keys() == {"n"}


def test_a_trial_whose_keeper_is_elsewhere_does_not_wait_for_it(
    staging_run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with a /dev/shm for each job: the keeper has copied, and nothing is there."""
    monkeypatch.setattr(keeper, "KEEPER_PATIENCE_SECONDS", 1e9)
    values = {"state": "ready", "done_bytes": 1, "total_bytes": 1, "started": 0, "updated": 0}
    _files.write_record(staging_run.stage(0, "n"), StageProgress.model_validate(values))
    assert trial.run_trial(staging_run, "n", 0, 60) == 0
    assert "of its own" in capsys.readouterr().out


def test_weights_that_stay_where_they_are(
    staging_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "KEEPER_PATIENCE_SECONDS", 1e9)
    run = record(staging_run)
    stage = run.settings.stage.model_copy(update={"where": "none"})
    settings = run.settings.model_copy(update={"stage": stage})
    _files.write_record(staging_run.run, run.model_copy(update={"settings": settings}))
    assert run_keeper(staging_run, "n", 0, 30) == 0
    assert trial.run_trial(staging_run, "n", 0, 60) == 0  # no keeper is waited for
    assert stages_of(staging_run) == {}


def test_torn_lines_about_copies_are_left_out(staging_run: RunDir) -> None:
    assert run_keeper(staging_run, "n", 0, 30) == 0
    path = staging_run.copies("n")
    good = path.read_bytes()
    bad = [b"{torn\n", good.replace(b'"seconds":', b'"seconds":-'), good[:30]]
    path.write_bytes(b"".join([good, *bad]))
    assert len(learn_from_run.collect_observations(staging_run, record(staging_run))) == 1


def test_how_many_copied_at_once_is_a_mean_over_time() -> None:
    assert learn_from_run.mean_concurrency([]) == []
    assert learn_from_run.mean_concurrency([(0, 10)]) == [1]
    assert learn_from_run.mean_concurrency([(0, 10), (0, 10), (0, 10)]) == [3, 3, 3]
    assert learn_from_run.mean_concurrency([(0, 10), (10, 20)]) == [1, 1]
    assert learn_from_run.mean_concurrency([(0, 10), (5, 10), (8, 28)]) == [1.7, 2.4, 1.2]


def test_the_next_plan_stages_as_this_run_did(staging_run: RunDir) -> None:
    run = record(staging_run)
    storage = this_machine.storage_of(run.checkpoint.path)
    copied = measurements.WeightsCopied(time=time.time(), seconds=4.0, storage=storage)
    for node in "nm":
        measurements.append_line(staging_run.copies(node), copied)
    assert {one.at_once for one in stages_of(staging_run).values()} == {2}
    learn_from_run.store_observations(staging_run, run)
    eight = Node(name="n", gpus=8, free_gpus=8, gpu_type="h100", cpus=64, memory_gib=500)
    given = Dataset.model_validate({"name": "d", "items": 9, "prior": {"gpu_seconds": 5}})
    suite = Suite(name="s", digest="d", datasets=[given])

    def staged(**values: object) -> float:
        settings, _ = resolve([Layer(source="f", values=values)])
        offer = offer_of_cluster("slurm", ([eight], []), settings, time.time())
        asked = new_run(Inputs(run.checkpoint, suite, settings), "slurm", 0, exclusive=False)
        plan = plan_run(asked, offer, nodes_for(asked, offer), {}).plan
        assert plan.estimate.lower_bound_seconds > plan.stages[0].seconds
        return plan.stages[0].seconds

    learned = {"priors_dir": run.settings.priors_dir}
    by_default = Link(25.0).seconds(run.checkpoint.bytes, 1)
    assert staged(**learned) == pytest.approx(4, rel=0.2)
    assert staged(priors_dir="/nowhere") == pytest.approx(by_default)
