"""Reading why jobs of a run died: each log once, within bounds, and what follows into a file."""

import functools
from collections.abc import Callable, Iterable

from coordinate_eval import _format, _owner
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.failures import Failure, cause_of
from coordinate_eval.coordinator.report.site_rules import read_rules
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.logs import MOST_LOG_BYTES
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.troubles.causes import JobCause, write_cause
from coordinate_eval.diagnosis.cause import UNKNOWN, UNKNOWN_CURE
from coordinate_eval.diagnosis.reaction import reaction
from coordinate_eval.diagnosis.rules import Rules, shipped
from coordinate_eval.errors import UserError

MOST_LINE = 300
"""Characters of a root line that are kept."""


class Diagnoser:
    """Finds causes by the rules of a site, as they are when the first one is looked for.

    Args:
        run_dir: the run.
        settings: its settings, which name the rules.
        tell: called with an event for the user.
    """

    def __init__(self, run_dir: RunDir, settings: Settings, tell: Callable[[str], None]) -> None:
        self._dir, self._settings, self._tell = run_dir, settings, tell

    def diagnose(self, failures: Iterable[Failure]) -> None:
        """Write down why these jobs died."""
        for failure in failures:
            cause = cause_of(failure, self._rules, MOST_LOG_BYTES)
            cure = cause.cure if cause else UNKNOWN_CURE
            found = JobCause(
                job=failure.job,
                pullers=failure.pullers,
                node=failure.node,
                reason=cause.reason if cause else UNKNOWN,
                category=cause.category if cause else "unknown",
                action=reaction(cause).action,
                cure=self._more_memory(failure) or cure,
                root=_format.brief(cause.line.strip(), MOST_LINE) if cause else "",
                log=failure.log,
                before_work=failure.before_work,
            )
            write_cause(self._dir, found)
            if found.known:
                self._tell(f"{failure.kind} {failure.name} died of {found.words}")

    def _more_memory(self, failure: Failure) -> str:
        """Return the setting with the memory of a job that used up what it had, if there is one."""
        if failure.how != End.OUT_OF_MEMORY:
            return ""
        match failure.pullers:
            case Pullers.METRIC:
                section, gib = "metrics", self._settings.metrics.memory_gib
            case Pullers.BUILD | Pullers.SCORE:
                section, gib = "harness", self._settings.harness.memory_gib
            case _:
                return ""
        return f"give each of these jobs more memory: `[{section}] memory_gib` is {gib:g}"

    @functools.cached_property
    def _rules(self) -> Rules:
        try:
            _owner.trust(self._settings.trusted_users)
            return read_rules(self._settings)
        except UserError as error:
            self._tell(f"causes are found by the shipped rules alone: {error}")
            return shipped()
