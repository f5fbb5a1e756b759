"""What a run has taught: the sums of what its trials measured, kept in the store of priors.

Published at the end of a run, complete or not; a run that is resumed replaces what it said.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claims import Ledger
from coordinate_eval.coordinator.run.jobs import trials_of
from coordinate_eval.coordinator.run.measurements import (
    EngineStarted,
    ShardDone,
    read_copies,
    read_lines,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.priors import roofline
from coordinate_eval.priors.conditions import conditions, model_of, on_processor
from coordinate_eval.priors.observations import (
    BuildSeen,
    DatasetSeen,
    MetricSeen,
    Seen,
    StageSeen,
    TrialSeen,
    subject,
)
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Answer, CheckpointFormat, DatasetRequests


def publish(run_dir: RunDir, run: Run) -> int:
    """Put what this run has shown into the store; files written: 1, or 0 for nothing new.

    Raises:
        OSError: the store cannot be written.
    """
    return Store(Path(run.settings.priors_dir).expanduser()).put(collect(run_dir, run))


def collect(run_dir: RunDir, run: Run) -> list[Seen]:
    """What this run has shown so far."""
    name = f"{run.id}-{run.nonce}"
    asked = model_of(run.checkpoint, run.tensor_parallel, run_dir.model / "config.json")
    subjects = {d.name: subject(d) for d in run.suite.datasets}
    found: list[Seen] = []
    shards: defaultdict[tuple[str, Conditions], list[ShardDone]] = defaultdict(list)
    for trial, gpu in _trials(run_dir, run):
        lines = list(read_lines(run_dir.observations(trial)))
        started = next((line for line in lines if isinstance(line, EngineStarted)), None)
        if started is None:
            continue
        gpu = on_processor(gpu, started.processor)
        on = conditions(run.settings.engine, started.engine_version, gpu, asked)
        found.append(
            TrialSeen(
                run=name,
                time=started.time,
                conditions=on,
                trial=trial,
                start_seconds=started.start_seconds,
            )
        )
        for line in lines:
            if isinstance(line, ShardDone) and line.dataset in subjects and line.requests:
                shards[line.dataset, on].append(line)
    datasets = [
        DatasetSeen(
            run=name,
            time=max(s.time for s in done),
            conditions=on,
            dataset=dataset,
            subject=subjects[dataset],
            shards=len(done),
            items=sum(s.items for s in done),
            requests=sum(s.requests for s in done),
            prompt_tokens=sum(s.prompt_tokens for s in done),
            output_tokens=sum(s.output_tokens for s in done),
            scored_tokens=sum(s.scored_tokens for s in done),
            longest_output_tokens=max(s.longest_output_tokens for s in done),
            gpu_seconds=max(1e-6, sum(s.gpu_seconds for s in done)),
        )
        for (dataset, on), done in shards.items()
    ]
    asking = {seen.dataset: seen for seen in datasets if seen.dataset in run.asks}
    metrics = [metric for seen in asking.values() for metric in _metric(run_dir, run, seen)]
    stages = _stages(run_dir, run, name, asked)
    return [*found, *datasets, *metrics, *stages, *_builds(run_dir, run, name, asked)]


def _metric(run_dir: RunDir, run: Run, of: DatasetSeen) -> Iterator[MetricSeen]:
    """What the questions of a dataset's shards took, of those that are answered whole."""
    ledger = Ledger(run_dir, "answers")
    items, seconds = 0, 0.0
    for shard in run.shards:
        if shard.dataset != of.dataset or ledger.unpublished(portions := run.portions(shard)):
            continue
        items += shard.stop - shard.start
        for portion in portions:
            for line in _files.whole_lines(run_dir.published("answers", portion)):
                seconds += Answer.model_validate_json(line).seconds
    if items:
        yield MetricSeen(
            run=of.run,
            time=of.time,
            conditions=of.conditions,
            dataset=of.dataset,
            subject=of.subject,
            items=items,
            cpu_seconds=seconds,
        )


def _stages(run_dir: RunDir, run: Run, name: str, asked: roofline.Model) -> list[StageSeen]:
    """Every whole copy of the weights; a node that had them already made none."""
    nodes = {
        node.name: node.gpu_type or run.gpu_type
        for round_ in read_rounds(run_dir)
        for node in round_.nodes
    }
    copies = [(node, copy) for node in nodes for copy in read_copies(run_dir.copies(node))]
    together = at_once([(copy.time - copy.seconds, copy.time) for _, copy in copies])
    return [
        StageSeen(
            run=name,
            time=copy.time,
            # Weights are copied before there is an engine: its version is not known here.
            conditions=conditions(run.settings.engine, "", nodes[node], asked),
            node=node,
            storage=copy.storage,
            bytes=max(1, run.checkpoint.bytes),
            seconds=copy.seconds,
            at_once=others,
            converted=run.checkpoint.format is CheckpointFormat.TORCH,
        )
        for (node, copy), others in zip(copies, together, strict=True)
    ]


def at_once(spans: Sequence[tuple[float, float]]) -> list[float]:
    """For each span from one time to a later one, how many there were during it: the mean over
    its time, itself one of them.
    """
    return [
        sum(max(0.0, min(stop, end) - max(start, begin)) for begin, end in spans) / (stop - start)
        for start, stop in spans
    ]


def _builds(run_dir: RunDir, run: Run, name: str, asked: roofline.Model) -> Iterator[BuildSeen]:
    """What building the requests took when they were built, which may be before this run."""
    for dataset in run.suite.datasets:
        found = _files.read_record_if_there(run_dir.requests_index(dataset.name), DatasetRequests)
        if found is None or found.built is None or found.build_cpu_seconds is None:
            continue
        yield BuildSeen(
            run=name,
            time=found.built,
            conditions=conditions(run.settings.engine, "", run.gpu_type, asked),
            dataset=dataset.name,
            subject=subject(dataset),
            items=found.items,
            cpu_seconds=found.build_cpu_seconds,
        )


def _trials(run_dir: RunDir, run: Run) -> Iterator[tuple[str, str]]:
    """Every trial that may have begun, and its type of GPU."""
    for round_ in read_rounds(run_dir):
        for trial, node in trials_of(round_):
            yield trial, node.gpu_type or run.gpu_type
