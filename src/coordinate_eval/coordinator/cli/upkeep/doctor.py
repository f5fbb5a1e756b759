"""`coordinate-eval doctor`: does this machine have what runs need, and do their jobs?"""

import os
from collections.abc import Iterable

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.cli.upkeep.findings import show_place, shown
from coordinate_eval.coordinator.doctor.examine import examine_here
from coordinate_eval.coordinator.doctor.findings import Answer, State, fails
from coordinate_eval.coordinator.doctor.in_jobs import ask
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError

SCHEMA = "coordinate-eval/doctor@1"


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
    here = tuple(shown(examine_here(settings, cluster), console))
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


def _count(answers: Iterable[Answer], state: State) -> int:
    return sum(each.state is state for one in answers for each in one.findings)
