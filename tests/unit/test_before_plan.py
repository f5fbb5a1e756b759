"""A run before it has a plan: its requests are built by jobs, then its supervisor plans, once."""

import json
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
from tests.decisions import facts, make_run
from tests.judged_runs import RUBRIC
from tests.reviewer import NODES, FakeCluster, Reviewer, plan_now
from tests.run_dirs import unplanned
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, TaskStatus
from coordinate_eval.coordinator.cli.launch import foreground
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.planning.plan import ChosenNodes
from coordinate_eval.coordinator.planning.plan_run import nodes_for
from coordinate_eval.coordinator.prompts.request_cache import link_found
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.claiming.work import unscored_datasets
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run, write_run
from coordinate_eval.coordinator.supervisor import loop, submitting
from coordinate_eval.coordinator.supervisor.decide_jobs import MAX_IDLE_ARRAYS
from coordinate_eval.coordinator.supervisor.decide_rounds import before_plan
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.placing import write_plan as step
from coordinate_eval.coordinator.supervisor.values import Finish, MakePlan
from coordinate_eval.coordinator.workers import builder
from coordinate_eval.errors import UserError
from coordinate_eval.records import Dataset, DatasetRequests


class Killed(BaseException):
    """The end of a process."""


def test_a_kill_before_the_plan_is_recorded_changes_no_plan(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = reviewer.start()
    run = read_run(run_dir)
    assert not run.planned
    link_found(run, run_dir)

    def killed(*_: object) -> NoReturn:
        raise Killed

    real = _files.create

    def create(path: Path, text: str) -> bool:
        return killed() if path == run_dir.round(0) else real(path, text)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(_files, "create", create)
        plan_now(run_dir, run, reviewer.cluster)
    plan = run_dir.plan.read_text()
    digest = json.loads(plan)["digest"]
    beside = run_dir.first_round(digest).read_text()
    assert not read_run(run_dir).planned
    reviewer.cluster.free = NODES[:1]
    made = plan_now(run_dir, run, reviewer.cluster)
    assert run_dir.plan.read_text() == plan
    asked = [shard for trial in json.loads(plan)["trials"] for shard in trial["shards"]]
    assert len(made.shards) == len(asked)
    # Keepers have the cores that were free then, and the run may grow as far as it could then.
    round_, before = json.loads(run_dir.round(0).read_text()), json.loads(beside)
    assert round_ == before
    assert {node["keeper_cpus"] for node in round_["nodes"]} == {4}
    assert not run_dir.first_round(digest).exists()
    # A second supervisor that began before it follows the same plan.
    assert plan_now(run_dir, run, reviewer.cluster) == made


def test_two_supervisors_at_the_same_time_make_one_plan(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = reviewer.start()
    run = read_run(run_dir)
    link_found(run, run_dir)
    other = FakeCluster()
    other.free = NODES[1:]

    def overtaken(*args: object) -> ChosenNodes:
        monkeypatch.setattr(step, "nodes_for", nodes_for)
        plan_now(run_dir, run, other)
        return nodes_for(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(step, "nodes_for", overtaken)
    made = plan_now(run_dir, run, reviewer.cluster)
    assert {node["name"] for node in json.loads(run_dir.plan.read_text())["nodes"]} == {"n2"}
    round_ = json.loads(run_dir.round(0).read_text())
    assert [node["name"] for node in round_["nodes"]] == ["n2"]
    assert made == read_run(run_dir)


class BuildJobs(FakeCluster):
    """A scheduler whose build jobs leave these errors, or die at the first dataset without any."""

    def __init__(self, run_dir: RunDir, errors: dict[str, str]) -> None:
        super().__init__()
        self._dir, self._errors = run_dir, errors

    def submit(self, job: Job) -> str:
        assert "_build" in job.argv, "no GPU is asked for"
        for name, error in self._errors.items():
            _files.write(self._dir.requests_error(name), error + "\n")
        if not self._errors:
            Ledger(self._dir, "requests").claim(whole("a"), "build-0", f"{job.name}_0.0")
        return super().submit(job)

    def poll(self, prefix: str) -> list[TaskStatus]:
        return []


def test_all_that_cannot_be_built_is_named_before_a_gpu_is_asked_for(tmp_path: Path) -> None:
    run_dir, run = unplanned(tmp_path)
    errors = {"a": "dataset 'a': task 'a' has no items", "b": "dataset 'b': no such task\nnone"}
    with pytest.raises(UserError) as caught:
        foreground.supervise(run_dir, run, BuildJobs(run_dir, errors), as_json=False)
    assert str(caught.value) == "\n".join(errors.values())
    results = json.loads(run_dir.results.read_text())
    assert results["missing"] == errors
    assert results["failures"] == list(errors.values())
    assert results["reason"] == "the requests of a, b cannot be built"
    assert state.phase_of(run_dir, run, [], silent=False) is Phase.INCOMPLETE


@pytest.mark.parametrize(
    ("strict", "unbuildable", "planned"),
    [(True, [], True), (True, ["a"], False), (False, ["a"], True), (False, ["a", "b"], False)],
)
def test_a_run_is_planned_without_what_cannot_be_built_only_if_nobody_waits_for_all_of_it(
    strict: bool, unbuildable: list[str], planned: bool
) -> None:
    run = make_run(shards=[], strict=strict)
    found = before_plan(run, facts(unbuildable=unbuildable))
    if planned:
        assert found == [MakePlan()]
    else:
        assert found == [Finish(f"the requests of {', '.join(unbuildable)} cannot be built")]


def test_a_plan_without_what_cannot_be_built(reviewer: Reviewer) -> None:
    """Keep the error of a dataset that is left out, also when the run is resumed."""
    run_dir = reviewer.start()
    run = read_run(run_dir).model_copy(update={"strict": False})
    write_run(run_dir, run)
    link_found(run, run_dir)
    run_dir.requests_index("tiny_code").unlink()
    run_dir.requests_error("tiny_code").write_text("its task is gone\n")
    made = plan_now(run_dir, run, reviewer.cluster)
    assert made.suite == run.suite
    assert {shard.dataset for shard in made.shards} == {"tiny_choice"}
    for _ in range(2):
        assert [d.name for d in unscored_datasets(run_dir, made)] == ["tiny_choice"]
        results = collect_results(run_dir, made)
        assert not results["complete"]
        assert results["missing"]["tiny_code"] == "its task is gone"
        Supervisor(run_dir, reviewer.cluster).begin()


def judged_start(reviewer: Reviewer, judge: Path) -> RunDir:
    """A run that may lack datasets, and whose tiny_code is rated by a checkpoint."""
    run_dir = reviewer.start()
    run = read_run(run_dir)
    link_found(run, run_dir)
    choice, code = run.suite.datasets
    suite = run.suite.model_copy(
        update={"datasets": [choice, code.model_copy(update={"rubric": RUBRIC})]}
    )
    settings = run.settings.model_copy(update={"judge": JudgeSettings(checkpoint=str(judge))})
    run = run.model_copy(update={"strict": False, "suite": suite, "settings": settings})
    write_run(run_dir, run)
    return run_dir


def test_a_judge_that_fails_once_while_nothing_is_free_is_not_given_up(
    reviewer: Reviewer, tmp_path: Path
) -> None:
    judge = tmp_path / "chat"
    run_dir, cluster = judged_start(reviewer, judge), reviewer.cluster
    cluster.free, cluster.busy = [], [node.busy("4 of 4 GPUs in use") for node in NODES]
    with pytest.raises(step.NothingFree):
        plan_now(run_dir, read_run(run_dir), cluster)
    shutil.copytree(tiny_model(), judge)
    cluster.free, cluster.busy = NODES, []
    made = plan_now(run_dir, read_run(run_dir), cluster)
    assert {shard.dataset for shard in made.shards} == {"tiny_choice", "tiny_code"}
    assert not run_dir.dataset_error("tiny_code").exists()


@pytest.mark.parametrize(
    ("back", "why"),
    [
        (False, "the judge cannot be used: checkpoint"),
        (True, "planned without this dataset, which could not be used then"),
    ],
)
def test_a_kill_after_a_plan_without_what_a_judge_rates_keeps_the_reason(
    reviewer: Reviewer, tmp_path: Path, back: bool, why: str
) -> None:
    judge = tmp_path / "chat"
    run_dir, cluster = judged_start(reviewer, judge), reviewer.cluster
    run = read_run(run_dir)
    plan_now(run_dir, run, cluster)
    assert "the judge cannot be used" in run_dir.dataset_error("tiny_code").read_text()
    run_dir.planned.unlink()  # as if killed before
    Supervisor(run_dir, cluster).begin()
    assert not run_dir.dataset_error("tiny_code").exists()
    if back:
        shutil.copytree(tiny_model(), judge)
    made = plan_now(run_dir, read_run(run_dir), cluster)
    Supervisor(run_dir, cluster).begin()
    assert {shard.dataset for shard in made.shards} == {"tiny_choice"}
    assert why in collect_results(run_dir, made)["missing"]["tiny_code"]


def test_what_several_datasets_lack_is_said_once(tmp_path: Path) -> None:
    run_dir, run = unplanned(tmp_path)
    cluster = BuildJobs(run_dir, dict.fromkeys("ab", "no network: run prefetch"))
    with pytest.raises(UserError, match=r"^a, b: no network: run prefetch$"):
        foreground.supervise(run_dir, run, cluster, as_json=False)


def test_build_jobs_that_die_are_replaced_a_few_times(tmp_path: Path) -> None:
    run_dir, run = unplanned(tmp_path)
    cluster = BuildJobs(run_dir, {})
    with pytest.raises(UserError, match="build jobs in a row built nothing"):
        foreground.supervise(run_dir, run, cluster, as_json=False)
    assert len(cluster.submitted) == MAX_IDLE_ARRAYS + 1
    assert Ledger(run_dir, "requests").count_deaths(whole("a")) == MAX_IDLE_ARRAYS + 1


def test_build_jobs_that_are_always_refused_end_the_run_with_the_schedulers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = unplanned(tmp_path)
    cluster = FakeCluster()
    cluster.refuses = True
    monkeypatch.setattr(submitting, "FIRST_PAUSE_SECONDS", 0.0)
    results = loop.Supervisor(run_dir, cluster).run()
    assert results is not None
    name = pullers_name(run, Pullers.BUILD, 0)
    times = submitting.MAX_REFUSALS
    assert results["reason"] == f"the scheduler refused {name} {times} times in a row: no"
    assert results["failures"] == [f"job {name}: no"]
    assert state.phase_of(run_dir, run, [], silent=False) is Phase.INCOMPLETE


def test_a_run_that_is_built_shows_how_far_it_is(tmp_path: Path) -> None:
    run_dir, run = unplanned(tmp_path)
    index = DatasetRequests.model_construct(dataset="a")
    _files.write(run_dir.requests_index("a"), index.model_dump_json())
    shown = state.progress(run_dir, run, [], silent=False, requests=0, supervised=True)
    assert (shown.phase, shown.detail) == (Phase.BUILDING, "prompts of 1 of 2 datasets are built")
    assert shown.responses == shown.requests == 0


def test_a_dataset_that_cannot_be_built_is_given_back_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def get(self, dataset: Dataset) -> None:
            raise UserError(f"no data of {dataset.name}")

    run_dir, _ = unplanned(tmp_path)
    monkeypatch.setattr(builder, "builder_of", lambda run: Failing())
    assert builder.run_builder(run_dir) == 0
    assert run_dir.requests_error("a").read_text() == "no data of a\n"
    ledger, spans = Ledger(run_dir, "requests"), [whole("a"), whole("b")]
    for span in spans:
        run_dir.requests_error(span.dataset).unlink()
    assert ledger.claimable(spans) == spans
    assert not any(map(ledger.count_deaths, spans))
