"""Learning from a run: its measurements, summed up and stored for later plans.

The supervisor stores it when the run ends, complete or not. A resumed run replaces its earlier
observations.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval._engines import kind_of
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.decided import without_withdrawn
from coordinate_eval.coordinator.run.jobs import trials_of
from coordinate_eval.coordinator.run.measurements import (
    EngineStarted,
    ShardDone,
    read_copies,
    read_lines,
    read_scorings,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.priors import roofline
from coordinate_eval.priors.conditions import conditions, model_of, on_processor
from coordinate_eval.priors.observations import (
    DatasetSeen,
    MetricSeen,
    ScoreSeen,
    Seen,
    StageSeen,
    TrialSeen,
    subject,
)
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Answer, DatasetRequests

Shards = Mapping[tuple[str, Conditions], Sequence[ShardDone]]
"""Measured shards by dataset and by the conditions under which they ran."""


def store_observations(run_dir: RunDir, run: Run) -> int:
    """Put the run's observations into the store. Return the files written: 1, or 0 for no news."""
    store = Store(Path(run.settings.priors_dir).expanduser())
    return store.put(collect_observations(run_dir, run))


def collect_observations(run_dir: RunDir, run: Run) -> list[Seen]:
    """Return what the run has measured so far."""
    name = f"{run.id}-{run.nonce}"
    engine, config = run.settings.engine, run_dir.model / "config.json"
    degree = max(1, run.tensor_parallel)
    model = model_of(run.checkpoint, engine, degree, config, run.nodes_per_trial)
    starts, shards = _read_trials(run_dir, run, name, model)
    datasets = list(_datasets(run_dir, run, name, shards))
    # A dataset may have run under several conditions; its metric counts once. The seconds of a
    # judge are not those of a core.
    asking = set(run.asks) - set(run.judged)
    with_questions = {seen.dataset: seen for seen in datasets if seen.dataset in asking}
    return [
        *starts,
        *datasets,
        *(metric for seen in with_questions.values() for metric in _metric(run_dir, run, seen)),
        *_scores(run_dir, run, name, model),
        *_stages(run_dir, run, name, model),
    ]


def mean_concurrency(spans: Sequence[tuple[float, float]]) -> list[float]:
    """Return, for each span of time, how many spans there were on average while it lasted.

    A span counts itself. Spans are pairs of a time and a later one, in seconds.
    """
    return [
        sum(max(0.0, min(stop, end) - max(start, begin)) for begin, end in spans) / (stop - start)
        for start, stop in spans
    ]


def _read_trials(
    run_dir: RunDir, run: Run, name: str, model: roofline.Model
) -> tuple[list[TrialSeen], Shards]:
    """Return the engines' starts, and the shards that trials finished."""
    datasets = {d.name for d in run.suite.datasets}
    starts: list[TrialSeen] = []
    shards: defaultdict[tuple[str, Conditions], list[ShardDone]] = defaultdict(list)
    for trial, gpu_type in _trials(run_dir, run):
        lines = list(read_lines(run_dir.observations(trial)))
        started = next((line for line in lines if isinstance(line, EngineStarted)), None)
        if started is None:
            continue
        gpu = on_processor(gpu_type, started.processor)
        on = conditions(run.settings.engine, started.engine_version, gpu, model)
        starts.append(
            TrialSeen(
                run=name,
                time=started.time,
                conditions=on,
                trial=trial,
                start_seconds=started.start_seconds,
            )
        )
        for line in lines:
            if isinstance(line, ShardDone) and line.dataset in datasets and line.requests:
                shards[line.dataset, on].append(line)
    return starts, shards


def _trials(run_dir: RunDir, run: Run) -> Iterator[tuple[str, str]]:
    """Yield the name of every trial that may have begun, and its GPU type."""
    for round_ in read_rounds(run_dir):
        for trial, node in trials_of(round_):
            yield trial, node.gpu_type or run.gpu_type


def _datasets(run_dir: RunDir, run: Run, name: str, shards: Shards) -> Iterator[DatasetSeen]:
    """Yield the sums of a dataset's shards."""
    subjects = {d.name: subject(d) for d in run.suite.datasets}
    for (dataset, on), done in shards.items():
        prompt_tokens = sum(s.prompt_tokens for s in done)
        yield DatasetSeen(
            run=name,
            time=max(s.time for s in done),
            conditions=on,
            dataset=dataset,
            subject=subjects[dataset],
            shards=len(done),
            items=sum(s.items for s in done),
            requests=sum(s.requests for s in done),
            prompt_tokens=prompt_tokens,
            cached_tokens=int(prompt_tokens * _cached_share(run_dir, dataset, on)),
            output_tokens=sum(s.output_tokens for s in done),
            scored_tokens=sum(s.scored_tokens for s in done),
            longest_output_tokens=max(s.longest_output_tokens for s in done),
            gpu_seconds=max(1e-6, sum(s.gpu_seconds for s in done)),
        )


def _cached_share(run_dir: RunDir, dataset: str, on: Conditions) -> float:
    """Return the share of a dataset's prompts that the engine need not compute again."""
    index = _files.read_record_if_there(run_dir.requests_index(dataset), DatasetRequests)
    if index is None or not kind_of(on.engine).shares_prefixes:
        return 0.0
    return index.cached_tokens / max(1, index.prompt_tokens)


def _metric(run_dir: RunDir, run: Run, seen: DatasetSeen) -> Iterator[MetricSeen]:
    """Yield the seconds of a dataset's answers, over the shards whose answers are all there."""
    ledger = Ledger(run_dir, "answers")
    items, seconds = 0, 0.0
    for shard in without_withdrawn(run_dir, run).shards:
        if shard.dataset != seen.dataset or ledger.unpublished(portions := run.portions(shard)):
            continue
        items += shard.stop - shard.start
        for portion in portions:
            for line in _files.whole_lines(run_dir.published("answers", portion)):
                seconds += Answer.model_validate_json(line).seconds
    if items:
        yield MetricSeen(
            run=seen.run,
            time=seen.time,
            conditions=seen.conditions,
            dataset=seen.dataset,
            subject=seen.subject,
            items=items,
            cpu_seconds=seconds,
        )


def _scores(run_dir: RunDir, run: Run, name: str, model: roofline.Model) -> Iterator[ScoreSeen]:
    """Yield the seconds of scoring each dataset; one that was scored again counts as a larger."""
    for dataset in run.suite.datasets:
        if done := list(read_scorings(run_dir.scorings(dataset.name))):
            yield ScoreSeen(
                run=name,
                time=max(each.time for each in done),
                conditions=conditions(run.settings.engine, "", run.gpu_type, model),
                dataset=dataset.name,
                subject=subject(dataset),
                items=sum(each.items for each in done),
                requests=sum(each.requests for each in done),
                seconds=sum(each.seconds for each in done),
            )


def _stages(run_dir: RunDir, run: Run, name: str, model: roofline.Model) -> Iterator[StageSeen]:
    """Yield every whole copy of the weights to a node."""
    nodes = {
        name: node.gpu_type or run.gpu_type
        for round_ in read_rounds(run_dir)
        for node in round_.nodes
        for name in node.names
    }
    copies = [(node, copy) for node in nodes for copy in read_copies(run_dir.copies(node))]
    at_once = mean_concurrency([(copy.time - copy.seconds, copy.time) for _, copy in copies])
    for (node, copy), others in zip(copies, at_once, strict=True):
        yield StageSeen(
            run=name,
            time=copy.time,
            # The engine's version is not known yet while weights are copied.
            conditions=conditions(run.settings.engine, "", nodes[node], model),
            node=node,
            storage=copy.storage,
            bytes=max(1, int((run.node_bytes or run.checkpoint.bytes) * run.checkpoint.reads)),
            seconds=copy.seconds,
            at_once=others,
            converted=run.checkpoint.converted,
        )
