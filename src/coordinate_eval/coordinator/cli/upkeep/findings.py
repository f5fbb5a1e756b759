"""Findings of the doctor on a terminal: as they come, in colors."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.markup import escape

from coordinate_eval.coordinator.doctor.findings import Finding, State

_COLORS = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "red"}
_INDENT = " " * 11


def show_place(place: str, more: str, console: Console) -> None:
    """Print where the findings come from that follow."""
    console.print(f"[bold]{escape(place)}[/bold] ({escape(more)})", highlight=False, soft_wrap=True)


def shown(findings: Iterable[Finding], console: Console) -> Iterator[Finding]:
    """Print findings as they come, and pass them on."""
    for each in findings:
        color = _COLORS[each.state]
        line = f"  [{color}]{each.state:<7}[/{color}]  {escape(each.check)}: {escape(each.found)}"
        console.print(line, highlight=False, soft_wrap=True)
        for part in each.do.splitlines():
            console.print(f"{_INDENT}{escape(part)}", highlight=False, soft_wrap=True)
        yield each
