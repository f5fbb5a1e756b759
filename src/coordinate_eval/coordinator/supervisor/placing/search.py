"""Looking for nodes: for the plan, for later rounds, and again later where none is free."""

from collections.abc import Callable, Sequence, Set

from coordinate_eval import _files
from coordinate_eval._clock import growing
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.incidents.bad_nodes import (
    AVOIDED_SECONDS,
    avoid,
    broken_nodes,
    suspected_nodes,
)
from coordinate_eval.coordinator.incidents.remedies import count_short_rounds
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import avoided_words, most_nodes
from coordinate_eval.coordinator.planning.places.nodes import (
    ASKING_NODE,
    NoFreeGpu,
    nodes_with_room,
)
from coordinate_eval.coordinator.planning.plan import NodeCapacity, Plan
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import given_up
from coordinate_eval.coordinator.run.jobs import keeper_gib
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, Run
from coordinate_eval.coordinator.run.rounds import make_round, nodes_in_vain, read_rounds
from coordinate_eval.coordinator.supervisor.decide_rounds import count_trials, held_nodes
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns, Overtaken
from coordinate_eval.coordinator.supervisor.placing.promises import NoRoom
from coordinate_eval.coordinator.supervisor.placing.write_plan import (
    NothingFree,
    may_queue,
    write_plan,
)
from coordinate_eval.coordinator.supervisor.values import Facts, Finish, Hands, NewRound
from coordinate_eval.errors import PlaceGone, UserError
from coordinate_eval.records import Shard


def next_round(
    run: Run,
    plan: Plan,
    rounds: Sequence[Round],
    left: Sequence[Shard],
    available: tuple[Sequence[Node], Sequence[Busy]],
    now: float,
    short_rounds: int = 0,
    within: Callable[[list[NodeCapacity], int], list[NodeCapacity]] = lambda nodes, gpus: nodes,
    *,
    trials: int,
    beside: int = 0,
    held: Set[str] = frozenset(),
    vain: Set[str] = frozenset(),
    queue: bool = False,
) -> Round:
    """Return a round for the shards that are `left`, on nodes that are `available` now.

    A run stays with one GPU type, and within the limits of its settings. It takes few nodes with
    many trials rather than many nodes with few. Among equal nodes it takes those that it holds.

    Args:
        short_rounds: last rounds in a row that perhaps were too short for a response.
        within: returns the part of chosen nodes, with trials of so many GPUs, that limits allow.
        beside: trials that go on meanwhile, or will.
        vain: nodes on which no trial began the last time, which are taken if there is no other.
        queue: if no GPU is free elsewhere, trials stand in the scheduler's queue for any node.

    Raises:
        UserError: no trial can start now; waiting may help.
    """
    window = run.limits.gpu_window
    if window is not None and window.start > now and window.minutes_before(now) is None:
        raise UserError(f"{window.why} takes all nodes soon, so the run waits until it is over")
    trials = min(trials, len(left))
    chosen = _choose(run, available, trials, held, vain, queue=queue)
    chosen = within(chosen, run.gpus_per_trial)
    return make_round(
        run,
        len(rounds),
        now,
        chosen,
        left,
        ready_seconds=plan.ready_seconds,
        floor_seconds=plan.floor_seconds,
        short_rounds=short_rounds,
        beside=beside,
    )


def _choose(
    run: Run,
    available: tuple[Sequence[Node], Sequence[Busy]],
    trials: int,
    held: Set[str],
    vain: Set[str],
    *,
    queue: bool,
) -> list[NodeCapacity]:
    """Return the nodes for so many trials, or with `queue` a stand-in for any of them.

    The other arguments, and errors, are those of `next_round`.
    """
    if run.settings.engine.elsewhere:
        return list(ASKING_NODE.nodes)
    nodes, busy = available
    usable = [node for node in nodes if node.gpu_type == run.gpu_type]
    limits: dict[str, object] = {"max_gpus": trials * run.gpus_per_trial}
    most = most_nodes(run.settings)
    if most is not None and held:
        if len(held) >= most:
            usable = [node for node in usable if node.name in held]
        limits["nodes"] = str(max(1, most - len(held)))
    usable.sort(key=lambda node: node.name not in held)
    settings = run.settings.model_copy(update=limits)
    try:
        return _with_room(run, settings, usable, busy, vain, queue=queue)
    except NoFreeGpu:
        if not queue:
            raise
    gpus = trials * run.gpus_per_trial
    return [NodeCapacity(name=ANY_NODE, gpus=gpus, gpu_type=run.gpu_type, trials=trials)]


def _with_room(
    run: Run,
    settings: Settings,
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    vain: Set[str],
    *,
    queue: bool,
) -> list[NodeCapacity]:
    """Return the nodes to ask for, as `nodes_with_room` does.

    Nodes where nothing started are a last resort, and none at all for a run that may `queue`: there
    its trials would lose their place again and again.

    Raises:
        NoFreeGpu: no GPU is free, or the run had better queue.
        UserError: no node has room.
    """
    gpus, gib, stages = run.tensor_parallel, keeper_gib(run), run.nodes_per_trial
    others = [node for node in nodes if node.name not in vain]
    if len(others) < len(nodes):
        try:
            return nodes_with_room(others, busy, settings, gpus, gib, stages)
        except NoFreeGpu:
            if queue:
                raise
        except UserError:
            pass
    return nodes_with_room(nodes, busy, settings, gpus, gib, stages)


POLLS_PER_SEARCH = 6
"""Polls between two searches for a free GPU: the list of a large cluster's nodes is long."""

MOST_PATIENT = 10
"""Times that wait, at most, between later ones of searches in a row that found nothing."""


class Search:
    """Looks for nodes, and remembers how often in vain.

    Args:
        others: the user's other runs, which leave room for this one.
    """

    def __init__(self, hands: Hands, others: OtherRuns, poll_seconds: float) -> None:
        self._dir, self._cluster, self._clock, self._tell, self._note = hands
        self._others, self._poll_seconds = others, poll_seconds
        self._round_after = self._replace_after = 0.0
        self._searches = self._vain = 0
        self._suspected: Set[str] = frozenset()

    def plan(self, run: Run) -> Run | Finish | None:
        """Plan the run on the nodes that are free now; return None while none is."""
        now = self._clock.now()
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
            available, now = self._others.available(run), self._clock.now()
            suspected = suspected_nodes(self._dir, now)
            if action.otherwise and any(node.name in suspected for node in available[0]):
                return Finish(f"{action.otherwise}. No other node is there to try")
            limited = run.model_copy(update={"limits": self._cluster.limits()})
            vain = nodes_in_vain(self._dir, now - AVOIDED_SECONDS)
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
        _files.create_record(self._dir.round(new.number), new)
        self._searches = self._vain = 0
        names = ", ".join(new.node_names)
        self._note(f"round {new.number} on {names}; left: {plural(len(left), 'shard')}")
        return True

    def may_search(self, run: Run, facts: Facts) -> bool:
        """Return whether nodes may be looked for again, for all work or beside what goes on."""
        beside = run.planned and any(count_trials(run, facts))
        return self._clock.now() >= (self._replace_after if beside else self._round_after)

    def avoid_broken_nodes(self, run: Run) -> None:
        """Have later rounds, and the user's other runs, avoid nodes that failed this one."""
        if self._cluster.local:
            return
        for node, why, job in broken_nodes(self._dir):
            evidence = f"{run.id}.{run.nonce}:{job}"
            said = f"{why} ({job} of run {run.id})"
            new = avoid(run.settings, node, said, evidence, self._clock.now())
            if new is not None:
                self._tell(f"{node} is {avoided_words(new)}")
        suspected = suspected_nodes(self._dir, self._clock.now())
        for node in suspected.keys() - self._suspected:
            self._tell(f"{node} is {avoided_words(suspected[node])}")
        self._suspected = suspected.keys()

    def _go_on_without(self, why: Exception) -> None:
        """Look for nodes in place of lost ones later, ever less often: the run does not wait."""
        self._note(f"no trial is replaced now: {str(why).splitlines()[0]}")
        self._replace_after = self._clock.now() + self._pause(self._vain)
        self._vain += 1
        self._others.withdraw()

    def _pause(self, searches: int) -> float:
        """Return the seconds until the next search, after so many in vain."""
        first = POLLS_PER_SEARCH * self._poll_seconds
        return growing(first, searches, MOST_PATIENT * first)

    def _wait_for_nodes(self, why: Exception) -> None:
        """Look for nodes again later, ever less often, and say why."""
        words = str(why).splitlines()[0]
        pause = self._poll_seconds if isinstance(why, Overtaken) else self._pause(0)
        if not isinstance(why, NoRoom):
            pause = self._pause(self._searches)
            self._searches += 1
        self._round_after = self._clock.now() + pause
        self._tell(f"no round can start now: {words}")
        self._others.wait(words)
