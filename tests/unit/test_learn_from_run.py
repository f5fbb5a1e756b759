"""Measurements of a run, from its trials to the store and to the next plan's costs."""

import time
from collections import Counter
from pathlib import Path

import pytest
from tests.incidents import judge
from tests.measured_runs import CHECKPOINT, ITEMS, measured_run, record, request
from tests.plans import changed
from tests.reviewer import FakeCluster

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import costs
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claiming.claims import AttemptWriter, Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    TrialProgress,
    read_run,
)
from coordinate_eval.coordinator.supervisor import learn_from_run
from coordinate_eval.coordinator.supervisor.decide_rounds import last_round_recurs
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.workers import trial
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines.simulated import answer
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.observations import (
    DatasetSeen,
    MetricSeen,
    ScoreSeen,
    TrialSeen,
)
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.store import Store
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    DatasetResults,
    EngineSettings,
    Span,
)


@pytest.fixture
def run_dir(no_weights: None, tmp_path: Path) -> RunDir:
    return measured_run(tmp_path)


def work(run_dir: RunDir) -> None:
    """Run the trial; weights are nothing that the simulated engine needs."""
    assert trial.run_trial(run_dir, "n", 0, 60) == 0


def seen_of(run_dir: RunDir) -> dict[str, DatasetSeen]:
    seen = learn_from_run.collect_observations(run_dir, record(run_dir))
    return {s.dataset: s for s in seen if isinstance(s, DatasetSeen)}


def test_a_trial_measures_what_its_shards_cost(run_dir: RunDir) -> None:
    work(run_dir)
    seen = seen_of(run_dir)
    assert seen.keys() == {"text", "choice"}
    text, choice = seen["text"], seen["choice"]
    assert (text.shards, text.items, text.requests) == (3, ITEMS, 2 * ITEMS)
    assert (text.prompt_tokens, choice.prompt_tokens) == (2 * ITEMS * 3, 2 * ITEMS * 5)
    written = [answer(request("text", i, c)).tokens for i in range(ITEMS) for c in range(2)]
    assert (text.output_tokens, text.longest_output_tokens) == (sum(written), max(written))
    assert (choice.output_tokens, choice.scored_tokens) == (0, 2 * ITEMS * 2)
    # The engine sleeps a millisecond before each of 4 * ITEMS responses.
    assert text.gpu_seconds + choice.gpu_seconds >= 2 * ITEMS * 0.001
    for one in seen.values():
        assert one.gpu_seconds > 0
        assert one.run == "step-1-abc"
        assert one.conditions.gpu == "h100"
        assert one.conditions.model.family.startswith("Llama-")
    (started,) = [
        s
        for s in learn_from_run.collect_observations(run_dir, record(run_dir))
        if isinstance(s, TrialSeen)
    ]
    assert (started.trial, started.start_seconds >= 0) == ("n-0", True)


def test_what_an_earlier_attempt_answered_is_not_counted(run_dir: RunDir) -> None:
    span = record(run_dir).shards[0].span
    ledger = Ledger(run_dir, "outputs")
    assert ledger.claim(span, "other", "gone") == 1
    writer = AttemptWriter(ledger, span, 1)
    for choice in range(2):
        writer.write(answer(request("text", 0, choice)).line())
    writer.give_back("died")
    work(run_dir)
    text = seen_of(run_dir)["text"]
    assert (text.shards, text.items, text.requests) == (3, ITEMS - 1, 2 * ITEMS - 2)


def test_publishing_twice_leaves_one_record(run_dir: RunDir) -> None:
    run = record(run_dir)
    assert learn_from_run.store_observations(run_dir, run) == 0
    work(run_dir)
    assert learn_from_run.store_observations(run_dir, run) == 1
    assert learn_from_run.store_observations(run_dir, run) == 0
    seen = Store(Path(run.settings.priors_dir)).read()
    assert sorted(s.kind for s in seen) == ["dataset", "dataset", "trial"]


def test_torn_lines_of_a_killed_trial_are_left_out(run_dir: RunDir) -> None:
    work(run_dir)
    path = run_dir.observations("n-0")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"{torn\n", lines[-1][:40]]))
    assert sum(s.shards for s in seen_of(run_dir).values()) == 5


def test_a_folder_that_cannot_be_written_does_not_end_a_trial(run_dir: RunDir) -> None:
    (run_dir.root / "observations").write_text("a file is in the way")
    work(run_dir)
    assert not Ledger(run_dir, "outputs").unpublished(s.span for s in record(run_dir).shards)
    assert learn_from_run.collect_observations(run_dir, record(run_dir)) == []


@pytest.mark.parametrize("portions", [1, 2])
def test_seconds_of_a_metric_come_from_its_answers(run_dir: RunDir, portions: int) -> None:
    work(run_dir)
    before = record(run_dir)
    long = [s.model_copy(update={"metric_cpu_seconds": 8.0}) for s in before.shards]
    run = changed(before, shards=long, portion_seconds=8.0 / portions)
    ledger = Ledger(run_dir, "answers")
    asked = [portion for shard in run.shards[:2] for portion in run.portions(shard)]
    assert len(asked) == 2 * portions

    def answered(portion: Span) -> None:
        assert ledger.claim(portion, "me", "task") == 1
        writer = AttemptWriter(ledger, portion, 1)
        for number in range(3):
            done = Answer(id=str(number), passed=True, result="passed", seconds=0.5)
            writer.write(done.line())
        writer.publish()

    def metrics() -> list[tuple[int, float]]:
        found = learn_from_run.collect_observations(run_dir, run)
        return [(s.items, s.cpu_seconds) for s in found if isinstance(s, MetricSeen)]

    for portion in asked[:-1]:
        answered(portion)
    # A shard counts when all of it is answered.
    assert metrics() == [(2, 1.5 * portions)]
    answered(asked[-1])
    assert metrics() == [(4, 3.0 * portions)]


def test_what_scoring_took_is_summed_up(run_dir: RunDir) -> None:
    index = _files.read_record(run_dir.requests_index("choice"), DatasetRequests)
    measurements.append_scoring(run_dir.scorings("choice"), 1.5, index)
    # It was killed before the results were written, and scored again.
    measurements.append_scoring(run_dir.scorings("choice"), 2.5, index)
    with run_dir.scorings("choice").open("a") as file:
        file.write('{"time": 1, "items"')
    found = learn_from_run.collect_observations(run_dir, record(run_dir))
    scored = [seen for seen in found if isinstance(seen, ScoreSeen)]
    assert [(s.dataset, s.items, s.requests, s.seconds) for s in scored] == [
        ("choice", 2 * ITEMS, 4 * ITEMS, 4.0)
    ]


def test_the_next_plan_costs_what_this_run_took(run_dir: RunDir) -> None:
    work(run_dir)
    run = record(run_dir)
    learn_from_run.store_observations(run_dir, run)
    priors = costs.read_priors(run.settings, time.time())
    seen = seen_of(run_dir)["choice"]
    dataset = Dataset(name="renamed", task="choice")
    cost = costs.dataset_cost(dataset, seen.work(), seen.conditions, priors)
    assert cost.gpu_seconds == pytest.approx(seen.gpu_seconds, rel=0.05)
    shipped = costs.dataset_cost(dataset, seen.work(), seen.conditions, Priors())
    assert 0 < cost.spread < shipped.spread


class Idle(FakeCluster):
    """A cluster on which nothing runs any more, and nothing is left to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.refuses = [], True

    def cancel(self, job_ids: list[str]) -> None:
        pass


@pytest.mark.parametrize("usable", [True, False])
def test_a_run_ends_whether_or_not_it_can_be_learned_from(run_dir: RunDir, usable: bool) -> None:
    work(run_dir)
    run = record(run_dir)
    store = Path(run.settings.priors_dir)
    if not usable:
        store.write_text("no folder")
    for dataset in run.suite.datasets:
        scored = DatasetResults(dataset=dataset.name, items=ITEMS, results={})
        _files.write_record(run_dir.dataset_results(dataset.name), scored)
    told: list[str] = []
    results = Supervisor(run_dir, Idle(), tell=told.append).run()
    assert results is not None
    assert results["complete"]
    assert any("cannot store" in event for event in told) != usable
    if usable:
        assert {s.run for s in Store(store).read()} == {"step-1-abc"}


def test_a_suites_own_costs_are_certain() -> None:
    given = Dataset.model_validate({"name": "d", "items": 9, "prior": {"gpu_seconds": 5}})
    on = costs.conditions(CHECKPOINT, EngineSettings(), "h100", 1)
    work = catalogue.guessed_work(given, 9)
    cost = costs.dataset_cost(given, work, on, Priors())
    assert (cost.gpu_seconds, cost.spread) == (5, 0)


def test_a_learned_start_counts() -> None:
    on = costs.conditions(CHECKPOINT, EngineSettings(), "h100", 1)
    started = TrialSeen(run="r", time=0, conditions=on, trial="n-0", start_seconds=77.0)
    priors = Priors([started], 0)
    assert costs.engine_start_seconds(priors, on) == 77.0
    assert costs.engine_start_seconds(Priors(), on) == costs.ENGINE_START_SECONDS


def test_a_store_that_cannot_be_read_teaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "priors").write_text("no folder")
    priors = costs.read_priors(Settings(priors_dir=str(tmp_path / "priors")), time.time())
    on = costs.conditions(CHECKPOINT, EngineSettings(), "h100", 1)
    assert costs.engine_start_seconds(priors, on) == costs.ENGINE_START_SECONDS


def test_a_trial_tells_bad_input_from_other_errors(run_dir: RunDir) -> None:
    run = record(run_dir)
    engine = EngineSettings(name="simulated", args={"surprise": 1})
    settings = run.settings.model_copy(update={"engine": engine})
    _files.write_record(run_dir.run, run.model_copy(update={"settings": settings}))
    with pytest.raises(UserError):
        work(run_dir)
    found = _files.read_record(run_dir.trial("n-0"), TrialProgress)
    assert (found.state, found.cause) == ("failed", "input")
    assert "no engine argument 'surprise'" in found.message
    judge(run_dir)
    facts = gather_facts(run_dir, read_run(run_dir), [], time.time(), Counter())
    assert last_round_recurs(facts)
