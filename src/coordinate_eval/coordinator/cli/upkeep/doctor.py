"""`coordinate-eval doctor`: does this machine have what runs need, and do their jobs?"""

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterable, Iterator

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.runs import find_all
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.cli.upkeep.findings import show_place, shown
from coordinate_eval.coordinator.doctor.examine import examine_here
from coordinate_eval.coordinator.doctor.findings import Answer, Finding, State, fails, ok, warning
from coordinate_eval.coordinator.doctor.in_jobs import ask
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.records import HookEnd
from coordinate_eval.errors import RecordError, UserError

SCHEMA = "coordinate-eval/doctor@1"

MOST_RUNS = 20
"""Latest runs whose `after_run` is looked at."""


def examine_all(settings: Settings, *, submit: bool, as_json: bool) -> int:
    """Check this machine, and with `submit` what jobs find; return the exit status.

    Raises:
        UserError: jobs cannot be submitted with these settings.
    """
    cluster = clusters.chosen(settings)
    if submit and cluster is None:
        raise UserError(f"cluster file {settings.cluster} takes no jobs: leave out --submit")
    console = table_console()
    console.quiet = as_json
    host = os.uname().nodename
    show_place("here", host, console)
    found = itertools.chain(examine_here(settings, cluster), hooks(settings))
    here = tuple(shown(found, console))
    answers = [Answer(where="here", host=host, findings=here)]
    if submit and cluster is not None:
        for each in ask(settings, cluster.name):
            show_place(each.where, each.host or "no answer", console)
            answers.append(each.model_copy(update={"findings": (*shown(each.findings, console),)}))
    if as_json:
        listed = [each.model_dump(mode="json") for each in answers]
        write_json({"schema": SCHEMA, "ok": not fails(answers), "answers": listed})
    counts = {state: _count(answers, state) for state in (State.FAILURE, State.WARNING)}
    said = ", ".join(plural(count, state) for state, count in counts.items() if count)
    console.print(said or "all is well", highlight=False)
    return 1 if fails(answers) else 0


def hooks(settings: Settings) -> Iterator[Finding]:
    """Yield how the command of `after_run` ended in the latest runs, if it was called in any."""
    ends = []
    # A folder that cannot be read is named by another check, and a run by `coordinate-eval runs`.
    with contextlib.suppress(UserError):
        for run_dir, run in find_all(settings)[0][:MOST_RUNS]:
            with contextlib.suppress(RecordError, UserError, OSError):
                end = _files.read_record_if_there(run_dir.after_run, HookEnd)
                if end is not None:
                    ends.append((run_dir, run, end))
    failed = [each for each in ends if each[2].problem]
    if not failed:
        if ends:
            yield ok("after_run", f"it succeeded in the last {plural(len(ends), 'run')}")
        return
    run_dir, run, last = failed[0]
    again = shlex.join([*run.settings.after_run, str(run_dir.root)])
    yield warning(
        "after_run",
        f"it failed in {len(failed)} of {plural(len(ends), 'run')}, last in {run.id}: {last.words}",
        f"correct it, and call it for each of these runs (`coordinate-eval runs`): {again}",
    )


def _count(answers: Iterable[Answer], state: State) -> int:
    return sum(each.state is state for one in answers for each in one.findings)
