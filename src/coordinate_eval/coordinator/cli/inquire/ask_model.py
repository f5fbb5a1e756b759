"""`diagnose --ask` and `--confirm`: a model proposes rules, and the user takes them."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs.settings import DiagnosisSettings
from coordinate_eval.diagnosis.asking import VOTES, content_of, lines_to_show, rule_of, vote
from coordinate_eval.diagnosis.cause import Log
from coordinate_eval.diagnosis.lines import without_prefix
from coordinate_eval.diagnosis.rules import Rule, Rules, SiteRules, read_site, write_site
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.judged.prompts import question_of
from coordinate_eval.evaluators.servers.access import Access

TIMEOUT_SECONDS = 120.0
"""Seconds to wait for one answer, and in all for a server that gives none."""


def propose(
    logs: Sequence[Log], end: str, rules: Rules, settings: DiagnosisSettings, learned: Path
) -> None:
    """Ask the model about what no rule knows in these logs; print and keep what it proposes.

    Raises:
        UserError: the settings name no model.
        CoordinateError: the model does not answer.
    """
    if not settings.base_url or not settings.model:
        raise UserError("--ask needs a model: set [diagnosis] base_url and model")
    access = Access.of(
        settings.base_url, settings.model, settings.api_key_env, os.environ, "diagnosis"
    )
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
    _write(learned, site.model_copy(update={"proposed": [*others, rule]}))
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
            _write(learned, site.model_copy(update={"rules": [*known, rule], "proposed": rest}))
            say(f"{learned}: rule {rule.name} names {rule.reason} from now on")
            return rule
    raise UserError("nothing was proposed for a line of these logs: ask first, with --ask")


def _write(path: Path, site: SiteRules) -> None:
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
