"""The answers with which a judge compares those of a run: copied into it when it is created."""

from collections.abc import Iterator
from pathlib import Path

from coordinate_eval import _files, _user_files
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.decided import without_withdrawn
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged.baselines import BaselineAnswer, read_baseline
from coordinate_eval.records import Dataset, DatasetRequests, ItemRequests, Response

MOST_NAMED = 3
"""Questions without an answer that a message names."""


def write(run_dir: RunDir, run: Run) -> None:
    """Write the baseline's answers to the questions of each dataset that compares two answers.

    Raises:
        UserError: The baseline that the settings name cannot be read, or lacks a dataset.
    """
    pairs = [d for d in run.suite.datasets if d.rubric is not None and d.rubric.pair]
    baseline = run.settings.judge.baseline
    if not pairs or baseline is None:
        return
    root = Path(baseline).expanduser().absolute()
    run_dir.baselines_folder.mkdir()
    for dataset in pairs:
        if root.is_dir():
            answers = list(_of_run(RunDir(root), dataset))
        else:
            text = _user_files.read_text(root, "baseline", anybodys=True)
            answers = read_baseline(text.split("\n"), str(root))
        lines = "".join(answer.line() for answer in answers)
        _files.write(run_dir.baseline(dataset.name), lines)


def name_by_item(run_dir: RunDir, dataset: str, question_ids: list[str]) -> None:
    """Give answers of a run without ids the ids of the questions at the same positions.

    Answers of a dataset with another number of items, which may be others, stay without.
    """
    path = run_dir.baseline(dataset)
    if not path.exists():
        return
    answers = [BaselineAnswer.model_validate_json(line) for line in _files.lines(path)]
    if all(answer.id or answer.of_items != len(question_ids) for answer in answers):
        return
    named = (
        answer.model_copy(update={"id": question_ids[answer.item]})
        if answer.item is not None and answer.item < len(question_ids)
        else answer
        for answer in answers
    )
    _files.write(path, "".join(answer.line() for answer in named))


def why_incomplete(run_dir: RunDir, dataset: str, question_ids: list[str]) -> str:
    """Return which of a dataset's questions the baseline has not answered, empty if none."""
    path = run_dir.baseline(dataset)
    there = set()
    if path.exists():
        lines = _files.lines(path)
        there = {BaselineAnswer.model_validate_json(line).id for line in lines}
    missing = [each for each in question_ids if each not in there]
    if not missing:
        return ""
    some = ", ".join(missing[:MOST_NAMED])
    more = " and others" if len(missing) > MOST_NAMED else ""
    return (
        f"dataset {dataset!r}: the baseline has no answer to {len(missing)} of "
        f"{len(question_ids)} questions: {some}{more}. Set [judge] baseline to one that has, and "
        "start a new run"
    )


def _of_run(run_dir: RunDir, dataset: Dataset) -> Iterator[BaselineAnswer]:
    """Yield the answers in the responses of another run, cut as they were scored there.

    Raises:
        UserError: it is no run, or its dataset of this name is not the same.
    """
    where = f"baseline {run_dir.root}"
    if not run_dir.run.exists():
        raise UserError(
            f"{where} is a folder and no run directory: name a run, or a file of answers"
        )
    other = read_run(run_dir)
    found = next((each for each in other.suite.datasets if each.name == dataset.name), None)
    index_file = run_dir.requests_index(dataset.name)
    if found is None or found.task != dataset.task:
        raise UserError(f"{where} has no dataset {dataset.name} with this task")
    think_end = found.think_end_token or ""
    if think_end.isdigit():
        raise UserError(f"{where}: its answers end their thinking with a token's number: give text")
    index = _files.read_record(index_file, DatasetRequests)
    stops = {}
    for line in _files.lines(run_dir.requests(dataset.name)):
        item = ItemRequests.model_validate_json(line)
        stops[item.item] = item.requests[0].stop
    spans = [
        shard.span
        for shard in without_withdrawn(run_dir, other).shards
        if shard.dataset == dataset.name
    ]
    for span in sorted(set(spans) - set(Ledger(run_dir, "outputs").unpublished(spans))):
        for line in _files.lines(run_dir.published("outputs", span)):
            response = Response.model_validate_json(line)
            if response.repeat == 0 and response.text is not None:
                texts = [response.text, *(turn.text for turn in response.turns)]
                stop = stops.get(response.item, [])
                answers = [_cut(text, stop, think_end) for text in texts]
                if index.question_ids:
                    yield BaselineAnswer(id=index.question_ids[response.item], answers=answers)
                else:
                    at = {"item": response.item, "of_items": index.items}
                    yield BaselineAnswer.model_validate({"answers": answers, **at})


def _cut(text: str, stop: list[str], think_end: str) -> str:
    """Return the text after the thinking and before the first stop string, as the harness does."""
    if think_end:
        text = text.split(think_end)[-1].lstrip()
    for each in stop:
        text = text.split(each)[0]
    return text
