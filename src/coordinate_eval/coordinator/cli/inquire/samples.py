"""`coordinate-eval samples`: prompts, answers, targets and verdicts of a dataset, to be read.

The harness scores the dataset's responses again, in a confined process on this machine: see
`evaluators/confined/`. No GPU, no scheduler and no network is needed, but the harness is.
"""

import contextlib
import difflib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rich.console import Console
from rich.text import Text

from coordinate_eval import _files
from coordinate_eval._format import plural, visible_json
from coordinate_eval.coordinator.cli.inquire.runs import find
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option, output_option
from coordinate_eval.coordinator.cli.output import console, say
from coordinate_eval.coordinator.display.run_page import write_report
from coordinate_eval.coordinator.inputs.folders import working_in
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks
from coordinate_eval.coordinator.report import samples as choice
from coordinate_eval.coordinator.report.results import (
    judged,
    judged_differently,
    read_dataset,
    read_results,
)
from coordinate_eval.coordinator.report.samples import Card, Shown
from coordinate_eval.coordinator.run.claiming.decided import stopped, without_withdrawn
from coordinate_eval.coordinator.run.own import work_folder
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.scorer import (
    answer_files,
    response_files,
    start_evaluator,
)
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.confined.evaluator import Samples
from coordinate_eval.evaluators.confined.messages import LoggedSample
from coordinate_eval.records import Dataset, DatasetRequests, DatasetResults

FEW = 10
"""Items that are shown to people who do not say how many."""

MOST_IN_REPORT = 200
"""Items in `report.html`, each with some kilobytes."""


_Dataset = Annotated[
    str | None,
    option("--dataset NAME", "Show samples of this dataset.", shown="the only one of the run"),
]
_Items = Annotated[
    list[int] | None, option("--item N", "Show this item, counted from 0; may be repeated.")
]
_Wrong = Annotated[
    bool, option("--wrong", "Show the items that are not right, or of graded ones the worst.")
]
_Other = Annotated[
    str | None,
    option(
        "--diff OTHER",
        "Show the items that only one of RUN and OTHER gets right, or that differ most.",
    ),
]
_Most = Annotated[
    int | None,
    option("--limit N", "Show at most N items.", shown="10; all with --json or --output", min=1),
]
_Json = Annotated[
    bool,
    output_option(
        "--json", "Print a line of JSON for each sample, as lm_eval --log_samples writes it."
    ),
]
_Files = Annotated[
    Path | None,
    output_option("--output DIR", "Write a file of such lines for each task into this folder."),
]
_InReport = Annotated[
    bool, output_option("--report", "Write report.html of the run again, with these samples.")
]


class _Read(NamedTuple):
    """A dataset of a run, with its samples."""

    run_dir: RunDir
    run: Run
    results: DatasetResults
    samples: Samples
    shown: dict[int, Shown]

    def chosen(self, items: Sequence[int], *, all_filters: bool) -> Iterator[LoggedSample]:
        """Yield the samples of some items; where a task has several filters, all or the main's."""
        verdicts = self.samples.verdicts
        positions = choice.positions_of(verdicts, items)
        if not all_filters:
            first = {verdicts[n].item: n for n in reversed(positions)}
            main = {item: verdict.position for item, verdict in self.shown.items()}
            positions = [main.get(item, first[item]) for item in items]
        return self.samples.at(positions)

    def card(self, sample: LoggedSample, run: str = "") -> Card:
        """Return a sample as people read it."""
        said_by = "judge" if self.results.judge else "verdict"
        return choice.card(sample, self.shown.get(sample.item), run=run, said_by=said_by)


def samples_command(
    dataset: _Dataset = None,
    run: common.RunName = None,
    item: _Items = None,
    wrong: _Wrong = False,
    diff: _Other = None,
    limit: _Most = None,
    metric: common.Metric = None,
    as_json: _Json = False,
    output: _Files = None,
    report: _InReport = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show prompts, answers, targets and verdicts of a dataset that is scored.

    An item is right if the main metric of its task, or the one named, is 1 for it. The harness
    must be installed here: it scores the responses again, confined. No GPU is used.
    """
    settings, _ = load_settings({}, settings_file)
    forms = {"--json": as_json, "--output": bool(output), "--report": report}
    given = [form for form, asked in forms.items() if asked]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are two places for samples: give one of them")
    if wrong and diff is not None:
        raise UserError("--diff shows where two runs differ: leave out --wrong")
    _check_harness()
    # What is relative is so to the folder of the command, which is left below.
    folder = output and output.absolute()
    if report:
        limit = min(limit or FEW, MOST_IN_REPORT)
    elif limit is None and not item:
        limit = None if as_json or output else FEW
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(_reading(find(name, settings), dataset, metric))
            for name in ([run] if diff is None else [run, diff])
        ]
        ours = both[0]
        known = {verdict.item for verdict in ours.samples.verdicts}
        allowed = _differing(*both) if diff else _wrong_items(ours) if wrong else sorted(known)
        items = choice.select(known, item or [], allowed, limit, ours.results.dataset)
        if folder is not None:
            _write_files(both, items, folder)
        elif as_json:
            _write_lines(both, items)
        elif report:
            _write_report(ours, [*_cards(both, items)])
        else:
            _print(console(), _cards(both, items))
            if not item and len(items) < len(set(allowed)):
                say(f"{len(set(allowed)) - len(items):,} more: --limit N shows more")


def _check_harness() -> None:
    if find_spec("lm_eval") is None:
        raise UserError(
            "samples are read with the evaluation harness, which is not installed in this Python: "
            f"{sys.executable} -m pip install 'coordinate-eval[harness]', or call the "
            "coordinate-eval of the environment in which runs are scored"
        )


@contextlib.contextmanager
def _reading(run_dir: RunDir, name: str | None, metric: str | None) -> Iterator[_Read]:
    """Score a dataset of a run again, and give its samples in the block."""
    run = read_run(run_dir)
    check_tasks(run.suite, run.settings.trusted_users)
    dataset = _dataset(run, name)
    results = read_dataset(run_dir, dataset.name)
    if results is None:
        raise UserError(
            f"dataset {dataset.name!r} of run {run.id} is not scored yet; `coordinate-eval status "
            f"{run.id}` shows which are"
        )
    index = _files.read_record(run_dir.requests_index(dataset.name), DatasetRequests)
    shards = [
        shard for shard in without_withdrawn(run_dir, run).shards if shard.dataset == dataset.name
    ]
    part = dataset.name in stopped(run_dir)
    responses, answers = response_files(run_dir, shards), answer_files(run_dir, run, shards)
    with (
        working_in(str(work_folder(run_dir))),
        tempfile.TemporaryFile() as log,
        start_evaluator(run_dir, run, {dataset.name: index}, log) as evaluator,
        evaluator.samples(dataset, responses, answers, part=part) as samples,
    ):
        shown = choice.shown_verdicts(samples.verdicts, results, metric)
        if metric is not None and not shown:
            raise UserError(f"dataset {dataset.name!r} has no metric {metric!r} of its items")
        yield _Read(run_dir, run, results, samples, shown)


def _dataset(run: Run, name: str | None) -> Dataset:
    datasets = {dataset.name: dataset for dataset in run.suite.datasets}
    if name is None and len(datasets) > 1:
        raise UserError(
            f"name one of the {len(datasets)} datasets of run {run.id} with --dataset: "
            f"{', '.join(datasets)}"
        )
    name = name or next(iter(datasets))
    if name not in datasets:
        near = difflib.get_close_matches(name, datasets, n=3)
        also = f"; did you mean {', '.join(near)}?" if near else f": it has {', '.join(datasets)}"
        raise UserError(f"run {run.id} has no dataset {name!r}{also}")
    return datasets[name]


def _wrong_items(read: _Read) -> list[int]:
    """Return the items that are wrong, or of a graded dataset all, the worst first; say which."""
    results, verdicts = read.results, read.samples.verdicts
    items = plural(results.items, "item")
    if choice.is_graded(read.shown, results, verdicts):
        say(f"{results.dataset}: {items}, the worst first")
        return choice.worst_first(read.shown, results, verdicts)
    found = sorted(item for item, verdict in read.shown.items() if not verdict.right)
    say(f"{results.dataset}: {len(found):,} of {items} wrong")
    return found


def _differing(ours: _Read, theirs: _Read) -> list[int]:
    """Return the items whose verdicts differ in two runs, and say how many they are."""
    name = ours.results.dataset
    both = [(read.run.id, judged(read.results)) for read in (ours, theirs)]
    if problem := judged_differently((run, judge) for run, judge in both if judge):
        raise UserError(f"dataset {name!r} cannot be compared in these two runs: {problem}")
    graded = any(
        choice.is_graded(read.shown, read.results, read.samples.verdicts) for read in (ours, theirs)
    )
    found = choice.differing(ours.shown, theirs.shown, name, graded=graded)
    items = plural(ours.results.items, "item")
    if graded:
        say(f"{name}: {len(found):,} of {items} differ, the largest difference first")
        return found
    better = sum(ours.shown[item].right for item in found)
    say(
        f"{name}: of {items}, {better:,} are right in {ours.run.id} "
        f"only, and {len(found) - better:,} in {theirs.run.id} only"
    )
    return found


def _cards(both: Sequence[_Read], items: Sequence[int]) -> Iterator[Card]:
    """Yield what people read: item by item, and of each the answers of both runs."""
    names = [read.run.id if len(both) > 1 else "" for read in both]
    streams = [read.chosen(items, all_filters=False) for read in both]
    for samples in zip(*streams, strict=True):
        for read, sample, name in zip(both, samples, names, strict=True):
            yield read.card(sample, name)


def _lines(both: Sequence[_Read], items: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the task of each sample, and the sample in the harness's order and format.

    The judge's words are added, and of two runs their ids.
    """
    for read in both:
        for sample in read.chosen(items, all_filters=True):
            content: dict[str, Any] = json.loads(sample.content)
            if read.results.judge:
                content["judge"] = sample.words
            if len(both) > 1:
                content["run"] = read.run.id
            yield sample.task, content


def _line(content: dict[str, Any]) -> str:
    return visible_json(json.dumps(content, ensure_ascii=False)) + "\n"


def _write_lines(both: Sequence[_Read], items: Sequence[int]) -> None:
    several = len({verdict.task for verdict in both[0].samples.verdicts}) > 1
    for task, content in _lines(both, items):
        # The harness names the task in the name of a file.
        sys.stdout.write(_line(content | {"task": task} if several else content))


def _write_files(both: Sequence[_Read], items: Sequence[int], folder: Path) -> None:
    """Write a file for each task, named as the harness names it."""
    when = datetime.now().isoformat().replace(":", "-")
    found: dict[str, list[str]] = {}
    for task, content in _lines(both, items):
        found.setdefault(task.replace("/", "_"), []).append(_line(content))
    folder.mkdir(parents=True, exist_ok=True)
    for task, lines in found.items():
        path = folder / f"samples_{task}_{when}.jsonl"
        _files.write(path, "".join(lines))
        say(f"{path}: {plural(len(lines), 'sample')}")


def _write_report(read: _Read, cards: list[Card]) -> None:
    results = read_results(read.run_dir)
    if results is None:
        raise UserError(f"run {read.run.id} has no report yet: it has not ended")
    if problem := write_report(read.run_dir, results, cards):
        raise UserError(problem)
    say(f"{read.run_dir.report}: {plural(len(cards), 'sample')} of {read.results.dataset}")


def _print(where: Console, cards: Iterable[Card]) -> None:
    for card in cards:
        where.print(Text(card.title, style="bold"), soft_wrap=True)
        for name, text in card.parts:
            where.print(Text(name, style="cyan"))
            where.print(Text("\n".join(f"  {line}" for line in text.splitlines())), soft_wrap=True)
        where.print()
