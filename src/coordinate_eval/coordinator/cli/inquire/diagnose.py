"""`coordinate-eval diagnose`: why jobs failed, of a run or by their logs."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from coordinate_eval import _files, _user_files
from coordinate_eval._format import plural, size, visible
from coordinate_eval.coordinator.cli.inquire.runs import open_to_show
from coordinate_eval.coordinator.cli.output import say, table_console, write_json
from coordinate_eval.coordinator.incidents.causes import learned_file, read_rules
from coordinate_eval.coordinator.incidents.shown import FailedJob, diagnose_run
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.report.results import why_incomplete
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.diagnosis.asking import VOTES, content_of, lines_to_show, rule_of, vote
from coordinate_eval.diagnosis.cause import UNKNOWN, Ending, Log, find_cause, read_log
from coordinate_eval.diagnosis.lines import without_prefix
from coordinate_eval.diagnosis.rules import Rule, Rules, SiteRules, read_site, write_site
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.judged.prompts import question_of
from coordinate_eval.evaluators.servers.access import Access

TIMEOUT_SECONDS = 120.0
"""Seconds to wait for one answer, and in all for a server that gives none."""


def propose(
    logs: Sequence[Log], end: str, rules: Rules, settings: JudgeSettings, learned: Path
) -> None:
    """Ask the model about what no rule knows in these logs; print and keep what it proposes.

    Raises:
        UserError: the settings name no model.
        CoordinateError: the model does not answer.
    """
    if not settings.base_url or not settings.model:
        raise UserError("--ask needs a model: set [judge] base_url and model")
    access = Access.of(settings.base_url, settings.model, settings.api_key_env, os.environ)
    shown = lines_to_show(logs)
    if not shown:
        say("the logs have no line to ask about")
        return
    content = content_of(shown, end, rules.reasons)
    found = vote(asyncio.run(_answers(access, content)), shown, rules.reasons)
    if found is None:
        say(f"of {VOTES} answers of {settings.model}, no reason has more than half")
        return
    say(
        f"{settings.model} says, {found.votes} times of {VOTES}: {found.reason}\n"
        f"  line {found.line.first}: {found.line.text.strip()}\n  do: {found.cure}"
    )
    rule = rule_of(found)
    if rule is None:
        say("its line says too little for a rule")
        return
    site = read_site(learned)
    others = [each for each in site.proposed if each.name != rule.name]
    _write_rules(learned, site.model_copy(update={"proposed": [*others, rule]}))
    say("if that is right, the same command with --confirm in place of --ask makes a rule of it")


def confirm(logs: Sequence[Log], learned: Path) -> Rule:
    """Make a rule of what was proposed for a line of these logs, and return it.

    Raises:
        UserError: nothing was proposed for them.
    """
    site = read_site(learned)
    lines = [without_prefix(kept.text) for log in logs for kept in log.left.kept]
    for rule in reversed(site.proposed):  # the newest first
        if any(rule.found_in(line) for line in lines):
            rest = [each for each in site.proposed if each.name != rule.name]
            known = [each for each in site.rules if each.name != rule.name]
            _write_rules(
                learned, site.model_copy(update={"rules": [*known, rule], "proposed": rest})
            )
            say(f"{learned}: rule {rule.name} names {rule.reason} from now on")
            return rule
    raise UserError("nothing was proposed for a line of these logs: ask first, with --ask")


def _write_rules(path: Path, site: SiteRules) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _files.write(path, write_site(site))


async def _answers(access: Access, content: str) -> list[str]:
    """Return the answers to one question, asked several times."""
    question = question_of(access.model, content)
    async with Endpoint(
        access,
        concurrency=VOTES,
        timeout_seconds=TIMEOUT_SECONDS,
        patience_seconds=TIMEOUT_SECONDS,
    ) as endpoint:
        asked = [endpoint.ask(question) for _ in range(VOTES)]
        return [answer.result for answer in await asyncio.gather(*asked)]


SCHEMA = "coordinate-eval/diagnosis@1"


class Asked(NamedTuple):
    """The command line's arguments."""

    what: list[str]
    end: str
    ask: bool
    confirm: bool
    compressed: bool
    as_json: bool


def show_causes(settings: Settings, asked: Asked) -> int:
    """Print the cause of each failure.

    Returns:
        The exit status: 1 if a cause is not known, or if a run has ended without all of its results
        and no job of it failed.

    Raises:
        UserError: there is no such run or log, or the rules cannot be used.
    """
    if asked.ask and asked.confirm:
        raise UserError("--confirm is for what --ask has said: give one of them")
    rules = read_rules(settings)
    paths = [Path(each) for each in asked.what]
    if paths and all(_is_log(path) for path in paths):
        return _show_logs(paths, rules, settings, asked)
    if len(paths) > 1:
        missing = next(path for path in paths if not _is_log(path))
        raise UserError(f"no log file {str(missing)!r}: give the name of one run, or log files")
    if asked.end or asked.compressed or asked.ask or asked.confirm:
        raise UserError("--end, --compressed, --ask and --confirm are for log files: name some")
    with open_to_show(asked.what[0] if asked.what else None, settings) as (run_dir, foreign):
        found = diagnose_run(run_dir, rules)
        ended = [] if found else why_incomplete(run_dir)
    if foreign:
        say(foreign)
    if asked.as_json:
        _write(found, ended)
    elif found:
        _print(found, table_console())
    else:
        _print_no_failure(run_dir, ended, table_console())
    return 1 if ended else _status(found)


def _is_log(path: Path) -> bool:
    try:
        return path.is_file() and path.name != "run.json"
    except (OSError, ValueError):
        return False


def _show_logs(paths: Sequence[Path], rules: Rules, settings: Settings, asked: Asked) -> int:
    logs = [_read(path, rules) for path in paths]
    if asked.compressed:
        for log in logs:
            _print_compressed(log)
        return 0
    if asked.confirm:
        confirm(logs, learned_file(settings))
        rules = read_rules(settings)
        logs = [_read(path, rules) for path in paths]
    cause = find_cause(logs, rules, Ending(asked.end), by_words=True)
    if asked.ask and cause is not None and cause.reason == UNKNOWN:
        propose(logs, asked.end, rules, settings.judge, learned_file(settings))
    name = paths[0].name if len(paths) == 1 else plural(len(paths), "log")
    found = [] if cause is None else [FailedJob("job", name, "", "", "", cause)]
    if asked.as_json:
        _write(found)
    elif not found:
        table_console().print("no failure found", highlight=False)
    else:
        _print(found, table_console())
    return _status(found)


def _read(path: Path, rules: Rules) -> Log:
    _user_files.check_regular(path, "log file")
    try:
        with path.open("rb") as file:
            return read_log(file, str(path), rules)
    except OSError as error:
        raise UserError(f"log file {path} cannot be read: {error.strerror}") from error


def _status(found: Sequence[FailedJob]) -> int:
    return 1 if any(job.cause.reason == UNKNOWN for job in found) else 0


def _print_compressed(log: Log) -> None:
    text = visible(log.left.text())
    sys.stdout.write(text)
    say(
        f"{log.name}: {plural(log.left.lines, 'line')}, {size(log.left.bytes)}; left are "
        f"{plural(len(log.left.kept), 'line')}, {size(len(text.encode()))}"
    )


def _write(found: Sequence[FailedJob], ended: Sequence[str] = ()) -> None:
    failures = [_json(job) for job in found]
    write_json({"schema": SCHEMA, "failures": failures, "reasons": list(ended)})


def _json(job: FailedJob) -> dict[str, Any]:
    cause = job.cause.model_dump(mode="json") | {"then": job.cause.remedy.value}
    return {
        "kind": job.kind,
        "name": job.name,
        "node": job.node,
        "message": job.message,
        "cause": cause,
        "done": job.done,
    }


def _print_no_failure(run_dir: RunDir, ended: Sequence[str], where: Console) -> None:
    """Say that no job of a run failed, and why it ended all the same, if it did."""
    but = "; the run ended without all of its results:" if ended else ""
    where.print(Text(f"no job of {run_dir.root} failed{but}"), soft_wrap=True)
    for reason in ended:
        where.print(Text(f"  {reason}"), soft_wrap=True)


def _print(found: Sequence[FailedJob], where: Console) -> None:
    """Print each cause once, with the jobs that it ended."""
    alike: dict[tuple[str, str, str], list[FailedJob]] = {}
    for job in found:
        key = (job.kind, job.cause.reason, job.cause.rule)
        alike.setdefault(key, []).append(job)
    for (kind, _, _), jobs in alike.items():
        first = jobs[0]
        who = f"{kind} {first.name}" if len(jobs) == 1 else plural(len(jobs), kind)
        _print_cause(who, first, where)


def _print_cause(who: str, job: FailedJob, where: Console) -> None:
    cause = job.cause
    where.print(Text(f"{who}: {cause.reason} ({cause.category})", style="bold"), soft_wrap=True)
    place = f"{cause.log}:{cause.number}" if cause.number and cause.log else "Slurm"
    where.print(Text(f"  {place}: {cause.line.strip()}"), soft_wrap=True)
    where.print(Text(f"  do: {cause.cure}", style="green"), soft_wrap=True)
    if job.done:
        where.print(Text(f"  done: {job.done}"), soft_wrap=True)
    if cause.others:
        where.print(Text(f"  also seen: {', '.join(cause.others)}", style="dim"), soft_wrap=True)
