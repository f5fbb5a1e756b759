"""The screen of `coordinate-eval status`, made from the document that describes a run."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordinate_eval._format import plural, whole_duration
from coordinate_eval.coordinator.cli.output import (
    Ticker,
    differences,
    first_signal_table,
    new_table,
)
from coordinate_eval.coordinator.report.results import AggregateScore
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.report.warnings import often_odd
from coordinate_eval.coordinator.run.claiming.decided import Compared
from coordinate_eval.coordinator.run.records import HOOKS, HookEnd

_HEADLINES = {
    Phase.UNSUPERVISED: "has no supervisor",
    Phase.INCOMPLETE: "ended without all results",
}

_NEXT = {
    Phase.COMPLETE: "shows the scores beside those of other runs",
    Phase.DECIDED: "asks the items that are left, and keeps what is answered",
    Phase.INCOMPLETE: "tries again after you have fixed the cause",
    Phase.CANCELLED: "continues it from where it stopped",
    Phase.UNSUPERVISED: "continues it from where it stopped",
}


def show(shown: dict[str, Any], console: Console) -> None:
    """Print the whole document for a person."""
    for part in _parts(shown):
        console.print(part, soft_wrap=isinstance(part, Text))


class Following:
    """A screen that changes in place on a terminal; elsewhere a line for each change."""

    def __init__(self, console: Console) -> None:
        self._ticker = Ticker(console, "")
        self._live = Live(console=console, auto_refresh=False, transient=True)
        if console.is_terminal:
            self._live.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, shown: dict[str, Any]) -> None:
        """Show a newer state of the run."""
        if self._live.is_started:
            self._live.update(Group(*_parts(shown)), refresh=True)
            return
        self._ticker.update(*line(shown, _scored(shown)))


def line(known: Mapping[str, Any], scored: str) -> tuple[str, str]:
    """Return how far a run is in a line, and in a text of its own what changes with every look."""
    requests = known["requests"]  # none before the plan
    responses = f"{known['responses']:,} of {plural(requests, 'response')}" if requests else ""
    trials = f"trials: {words}" if (words := _trials(known)) else ""
    what = ", ".join(filter(None, (known["phase"], scored, trials)))
    more = ", ".join(filter(None, (known["detail"], responses, _times(known))))
    return what, f"; {more}"


def _parts(shown: dict[str, Any]) -> Iterator[RenderableType]:
    phase = Phase(shown["phase"])
    yield Text(f"run {shown['run']}: {_HEADLINES.get(phase, shown['state'])}", style="bold")
    yield Text(shown["dir"])
    yield Text(_facts(shown, phase))
    if phase.done or phase is Phase.INCOMPLETE:
        yield _scores(shown)
    else:
        yield _datasets(shown)
    if shown["rescored"] is not None:
        yield differences(shown["rescored"])
    for warning in itertools.chain(*(row["warnings"] for row in shown["datasets"].values())):
        yield Text(warning, style="yellow")
    if shown["first_signal"] is not None:
        yield first_signal_table(shown["first_signal"])
    if shown["jobs"]:
        yield _jobs(shown)
    for reason in shown["reasons"]:
        yield Text(reason, style="red" if phase.ended else "yellow")
    failed = [name for name, row in shown["datasets"].items() if row["state"] == "failed"]
    if phase is Phase.INCOMPLETE and 0 < len(failed) < len(shown["datasets"]):
        yield Text(
            "to have a run without what failed, ask for it with --skip "
            f"{','.join(failed)}; prompts that are built are not built again",
            style="yellow",
        )
    for hook in HOOKS:
        if shown.get(hook) and (problem := HookEnd.model_validate(shown[hook]).words):
            yield Text(problem, style="red")
    for node in shown["avoided"]:
        yield Text(node, style="yellow")
    if shown["note"]:
        yield Text(shown["note"], style="yellow")
    if phase is Phase.UNSUPERVISED and any(not job["held"] for job in shown["jobs"]):
        cancel = shown["next"].replace("resume", "cancel", 1)
        yield Text(f"its jobs go on and may hold GPUs: `{cancel}` ends them", style="yellow")
    if phase in _NEXT and shown["next"]:
        yield Text(f"`{shown['next']}` {_NEXT[phase]}")


def _facts(shown: dict[str, Any], phase: Phase) -> str:
    """Return the lines between the headline and the tables."""
    rows = {"checkpoint": shown["checkpoint"], "suite": shown["suite"]}
    if not phase.ended or shown["detail"]:
        rows["phase"] = shown["phase"] + (f": {shown['detail']}" if shown["detail"] else "")
    if shown.get("compared"):
        rows["compared"] = Compared.model_validate(shown["compared"]).words
    elif shown["part"]:
        rows["scores of"] = shown["part"]
    if phase is not Phase.COMPLETE:
        if shown["requests"]:  # there is a plan
            rows["responses"] = _responses(shown)
        rows["scores"] = _scored(shown)
        if shown["portions"]:
            rows["metrics"] = (
                f"{shown['portions_done']} of {plural(shown['portions'], 'portion')} of questions "
                "answered"
            )
        if judge := shown["judge"]:
            rows["judge"] = _judge(judge)
    if shown["trials_by_state"] and not phase.ended:
        rows["trials"] = _trials(shown)
    if phase.done or phase is Phase.INCOMPLETE or not phase.ended:
        rows["took" if phase.ended else "time"] = _times(shown)
    width = max(map(len, rows)) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows.items())


def _judge(judge: dict[str, Any]) -> str:
    """Return how far the judge is, and what is wrong with it."""
    known = f", {judge['kept']:,} known from earlier runs" if judge["kept"] else ""
    words = f"{plural(judge['answered'], 'question')} answered{known}, {judge['left']:,} waiting"
    words += f", {plural(judge['tokens'], 'token')}"
    if odd := often_odd(judge["odd"], judge["answered"] + judge["kept"]):
        words += f"; of its answers {', '.join(odd)}"
    return f"{words}; {judge['said']}" if judge["said"] else words


def _scored(shown: dict[str, Any]) -> str:
    states = [row["state"] for row in shown["datasets"].values()]
    scored = states.count("scored") + states.count("stopped")
    return scored_words(scored, len(states), states.count("scoring"))


def scored_words(scored: int, datasets: int, scoring: int) -> str:
    """Return how many datasets are scored, and how many are being scored."""
    words = f"{scored} of {plural(datasets, 'dataset')} scored"
    return f"{words}, {scoring} being scored" if scoring else words


def _trials(known: Mapping[str, Any]) -> str:
    """Return how many trials of a run that goes on are in which state, and on how many nodes."""
    words = ", ".join(f"{n} {word}" for word, n in known["trials_by_state"].items())
    return words + (f", on {plural(known['nodes'], 'node')}" if words and known["nodes"] else "")


def _responses(shown: dict[str, Any]) -> str:
    done, total = shown["responses"], shown["requests"]
    return f"{done:,} of {total:,} ({done / total:.0%})"


def _times(shown: Mapping[str, Any]) -> str:
    words = whole_duration(shown["elapsed_seconds"])
    if shown["left_seconds"] is not None:
        words += f", about {whole_duration(shown['left_seconds'])} left"
    return words


def _scores(shown: dict[str, Any]) -> Table:
    table = new_table("dataset", ">score", ">± stderr", ">items", "metric")
    for name, row in shown["datasets"].items():
        score, of = row["score"], f" of {row['of_items']:,}" if row["of_items"] else ""
        items = "" if row["items"] is None else f"{row['items']:,}{of}"
        if score is None:
            missing = row["state"] != "scored"
            table.add_row(name, Text("missing", "red") if missing else "", "", items, "")
            continue
        mean = f" (mean of {score['tasks']} tasks)" if score["tasks"] > 1 else ""
        table.add_row(name, *_with_error(score), items, score["metric"] + mean)
    for name, each in shown["aggregates"].items():
        if each["value"] is None:
            why = AggregateScore.model_validate(each).why_unknown
            table.add_row(name, "", "", "", Text(why, "red"))
            continue
        what = f"aggregate of {plural(each['datasets'], 'dataset')}"
        table.add_row(name, *_with_error(each), "", what)
    for name, why in shown["left_out"].items():
        table.add_row(Text(name, "yellow"), "", "", "", Text(f"left out: {why}", "yellow"))
    return table


def _with_error(score: dict[str, Any]) -> tuple[str, str]:
    return f"{score['value']:.4f}", "" if score["stderr"] is None else f"{score['stderr']:.4f}"


def _datasets(shown: dict[str, Any]) -> Table:
    table = new_table("dataset", "state", ">shards")
    for name, row in shown["datasets"].items():
        shards = f"{row['shards_done']} of {row['shards']}" if row["shards"] else ""
        table.add_row(name, row["state"], shards)
    return table


def _jobs(shown: dict[str, Any]) -> Table:
    table = new_table("job", "id", "state", "node", "reason")
    for task in shown["jobs"]:
        table.add_row(*(task[key] for key in ("what", "id", "state", "node", "reason")))
    return table
