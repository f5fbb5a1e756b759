"""Looking for nodes: for the plan, for later rounds, and again later where none is free."""

import time
from collections.abc import Callable, Set

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.incidents.avoided import avoid
from coordinate_eval.coordinator.incidents.bad_nodes import broken_nodes, suspected_nodes
from coordinate_eval.coordinator.incidents.remedies import count_short_rounds
from coordinate_eval.coordinator.planning.places.asked_nodes import avoided_words
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import nodes_in_vain, read_rounds
from coordinate_eval.coordinator.supervisor.decisions.replacements import count_trials, held_nodes
from coordinate_eval.coordinator.supervisor.decisions.values import Facts, Finish, NewRound
from coordinate_eval.coordinator.supervisor.placing.next_round import next_round
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns, Overtaken
from coordinate_eval.coordinator.supervisor.placing.promises import NoRoom
from coordinate_eval.coordinator.supervisor.placing.write_plan import (
    NothingFree,
    may_queue,
    write_plan,
)
from coordinate_eval.errors import PlaceGone, UserError

POLLS_PER_SEARCH = 6
"""Polls between two searches for a free GPU: the list of a large cluster's nodes is long."""

MOST_PATIENT = 10
"""Times that wait, at most, between later ones of searches in a row that found nothing."""


class Search:
    """Looks for nodes, and remembers how often in vain.

    Args:
        run_dir: the run.
        cluster: the scheduler.
        others: the user's other runs, which leave room for this one.
        poll_seconds: between two polls.
        tell: called with an event for the user.
        note: called with each step that is taken, in words for a log.
    """

    def __init__(
        self,
        run_dir: RunDir,
        cluster: Cluster,
        others: OtherRuns,
        poll_seconds: float,
        *,
        tell: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._dir = run_dir
        self._cluster = cluster
        self._others = others
        self._poll_seconds = poll_seconds
        self._tell = tell
        self._note = note
        self._round_after = self._replace_after = 0.0
        self._searches = self._vain = 0
        self._suspected: Set[str] = frozenset()

    def plan(self, run: Run) -> Run | Finish | None:
        """Plan the run on the nodes that are free now; return None while none is."""
        now = time.time()
        if now < self._round_after:
            return None
        try:
            planned = write_plan(self._dir, run, self._cluster, now, self._others)
        except (NothingFree, NoRoom) as error:
            self._wait_for_nodes(error)
            return None
        except UserError as error:
            return Finish(str(error))
        self._searches = 0
        return planned

    def new_round(self, run: Run, action: NewRound, facts: Facts) -> Finish | bool:
        """Create the next round on the nodes that are free now; create none while no GPU is.

        Return how the run ends, or whether there is a round.
        """
        if not self.may_search(run, facts):
            return False
        rounds = list(read_rounds(self._dir))
        unpublished = set(Ledger(self._dir, "outputs").unpublished(s.span for s in run.shards))
        lost = given_up(self._dir)
        left = [s for s in run.shards if s.span in unpublished and s.dataset not in lost]
        if not left:
            return False
        plan = _files.read_record(self._dir.plan, Plan)
        self.avoid_broken_nodes(run)
        beside, held = sum(count_trials(run, facts)), held_nodes(run, facts)
        try:
            available, now = self._others.available(run), time.time()
            suspected = suspected_nodes(self._dir, run, now)
            if action.otherwise and any(node.name in suspected for node in available[0]):
                return Finish(f"{action.otherwise}. No other node is there to try")
            limited = run.model_copy(update={"limits": self._cluster.limits()})
            vain = nodes_in_vain(self._dir, now - 60 * run.settings.trial.avoid_minutes)
            short = count_short_rounds(self._dir, run, rounds, now)
            new = next_round(
                limited, plan, rounds, left, available, now, short, self._others.within,
                trials=action.trials, beside=beside, held=held, vain=vain,
                queue=not beside and may_queue(run, self._cluster),
            )  # fmt: skip
            self._others.take(run, new.number, new.nodes)
        except (UserError, NoRoom) as error:
            if isinstance(error, PlaceGone) and not beside:
                return Finish(str(error))
            if beside:
                self._go_on_without(error)
            else:
                self._wait_for_nodes(error)
            return False
        _files.create(self._dir.round(new.number), new.model_dump_json(indent=1))
        self._searches = self._vain = 0
        names = ", ".join(node.name for node in new.nodes)
        self._note(f"round {new.number} on {names}; left: {plural(len(left), 'shard')}")
        return True

    def may_search(self, run: Run, facts: Facts) -> bool:
        """Return whether nodes may be looked for again, for all work or beside what goes on."""
        beside = run.planned and any(count_trials(run, facts))
        return time.time() >= (self._replace_after if beside else self._round_after)

    def avoid_broken_nodes(self, run: Run) -> None:
        """Have later rounds, and the user's other runs, avoid nodes that failed this one."""
        if self._cluster.local:
            return
        for node, why, job in broken_nodes(self._dir):
            evidence = f"{run.id}.{run.nonce}:{job}"
            said = f"{why} ({job} of run {run.id})"
            new = avoid(run.settings, node, said, evidence, time.time())
            if new is not None:
                self._tell(f"{node} is {avoided_words(new)}")
        suspected = suspected_nodes(self._dir, run, time.time())
        for node in suspected.keys() - self._suspected:
            self._tell(f"{node} is {avoided_words(suspected[node])}")
        self._suspected = suspected.keys()

    def _go_on_without(self, why: Exception) -> None:
        """Look for nodes in place of lost ones later, ever less often: the run does not wait."""
        self._note(f"no trial is replaced now: {str(why).splitlines()[0]}")
        polls = POLLS_PER_SEARCH * min(MOST_PATIENT, 2 ** min(self._vain, 16))
        self._vain += 1
        self._replace_after = time.time() + polls * self._poll_seconds
        self._others.withdraw()

    def _wait_for_nodes(self, why: Exception) -> None:
        """Look for nodes again later, ever less often, and say why."""
        words = str(why).splitlines()[0]
        polls = 1 if isinstance(why, Overtaken) else POLLS_PER_SEARCH
        if not isinstance(why, NoRoom):
            polls *= min(MOST_PATIENT, 2 ** min(self._searches, 16))
            self._searches += 1
        self._round_after = time.time() + polls * self._poll_seconds
        self._tell(f"no round can start now: {words}")
        self._others.wait(words)
