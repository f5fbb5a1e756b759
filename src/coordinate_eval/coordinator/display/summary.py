"""The figures and tables of a plan that a dry run shows, computed once for all displays."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinate_eval._format import duration, plain, plural, size
from coordinate_eval.clusters.protocol import ShownJob
from coordinate_eval.coordinator.planning.context import Need
from coordinate_eval.coordinator.planning.judge_plan import EXCHANGE_TOKENS, questions_to_judge
from coordinate_eval.coordinator.planning.offer import Offer
from coordinate_eval.coordinator.planning.plan import Cost, Plan, PlanCheckpoint
from coordinate_eval.coordinator.planning.plan_run import PlannedRun
from coordinate_eval.coordinator.planning.simulate import Timeline, TrialBar, simulate
from coordinate_eval.coordinator.run.records import ANY_NODE, Run


@dataclass(frozen=True)
class JobConditions:
    """The common conditions of these jobs. Seconds are those of a job alone on its node."""

    slots: Sequence[int]
    """Number of these jobs that run at once, on each node."""
    load_seconds: float
    engine_start_seconds: float
    cores: int
    link_seconds: float | None = None
    """Seconds of a load if it had its node's link for itself; None if a load fills the link."""

    def slowed(self, loads: int) -> float:
        """Return the factor by which a load takes longer with this many loads on its node."""
        if self.link_seconds is None or not self.load_seconds:
            return loads
        return max(1.0, loads * self.link_seconds / self.load_seconds)


@dataclass
class _Loading:
    """A job that loads weights; `left` are the seconds it needs if alone on its node."""

    node: int
    left: float
    cost: Cost


def one_job_each(costs: Sequence[Cost], on: JobConditions) -> float:
    """Return the makespan, in seconds, of jobs started in this order as GPUs become free.

    Jobs that load at once on one node share its link evenly.
    """
    waiting = list(reversed(costs))
    free = Counter(dict(enumerate(on.slots)))
    loads: Counter[int] = Counter()
    loading: list[_Loading] = []
    ends: list[tuple[float, int]] = []
    now = 0.0
    while waiting or loading or ends:
        while waiting and any(free.values()):
            node = min((n for n in free if free[n]), key=lambda candidate: loads[candidate])
            free[node] -= 1
            loads[node] += 1
            loading.append(_Loading(node, on.load_seconds, waiting.pop()))
        events = [now + job.left * on.slowed(loads[job.node]) for job in loading]
        then = min([*events, *(when for when, _ in ends[:1])])
        for job in loading:
            job.left -= (then - now) / on.slowed(loads[job.node])
        now = then
        for job in [job for job in loading if job.left < 1e-9]:
            loading.remove(job)
            loads[job.node] -= 1
            begin = now + on.engine_start_seconds
            heapq.heappush(ends, (begin + held_seconds(job.cost, on.cores), job.node))
        while ends and ends[0][0] <= now:
            free[heapq.heappop(ends)[1]] += 1
    return now


def longest_first(costs: Sequence[Cost], cores: int) -> list[Cost]:
    """Return the datasets in the order in which a careful user submits them."""
    return sorted(costs, key=lambda cost: -held_seconds(cost, cores))


def held_seconds(cost: Cost, cores: int) -> float:
    """Return how many seconds a job of its own holds the GPUs, once the engine runs."""
    used = min(cores, cost.items)
    answered = max(cost.gpu_seconds, cost.floor_seconds)
    return answered + cost.metric_cpu_seconds / used + cost.score_seconds


WORTH_TELLING = 0.01
"""Least part of the makespan after the last response that is worth a line."""


@dataclass(frozen=True)
class Review:
    """The content of a dry run's display of a plan."""

    plan: Plan
    run: Run
    offer: Offer
    timeline: Timeline
    one_job_each: float
    """Makespan in seconds of one job per dataset in the suite's order, on the same GPUs."""
    longest_first: float
    """The same with the longest dataset first."""
    jobs: Sequence[ShownJob]
    needs: Sequence[Need]
    """Tokens of context that each dataset needs, most first."""
    unbuilt: Sequence[str]
    """Datasets whose prompts are not in the cache."""
    own_answers: Sequence[str] = ()
    """Lines about datasets whose few-shot examples are evaluated items."""


class Table(NamedTuple):
    """A table of text: the first column holds names, all others numbers."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def review(planned: PlannedRun, offer: Offer, shown: Sequence[ShownJob]) -> Review:
    """Compute what a dry run shows of a plan."""
    plan = planned.plan
    used = {node.name for node in plan.nodes}
    staged = plan.stages[0].seconds
    on = JobConditions(
        slots=[node.trials for node in planned.capacity.nodes if node.name in used],
        load_seconds=staged,
        # A copy may be slower than the link; jobs that load beside each other then fill it.
        link_seconds=min(staged, plan.checkpoint.bytes * 8 / (offer.link_gigabits * 1e9)),
        engine_start_seconds=plan.trials[0].setup_seconds,
        cores=_cores_per_job(plan, offer),
    )
    return Review(
        plan=plan,
        run=planned.run,
        offer=offer,
        timeline=simulate(
            plan.datasets, plan.trials, plan.metric_jobs, plan.score_jobs, offer.metric_cpus
        ),
        one_job_each=one_job_each(plan.datasets, on),
        longest_first=one_job_each(longest_first(plan.datasets, on.cores), on),
        jobs=shown,
        needs=planned.needs,
        unbuilt=planned.unbuilt,
        own_answers=planned.own_answers,
    )


def summary(found: Review) -> list[tuple[str, str]]:
    """Return the main figures of a plan, each with its name."""
    plan, estimate = found.plan, found.plan.estimate
    checkpoint = plan.checkpoint
    items = sum(cost.items for cost in plan.datasets)
    kind = f"{plain(plan.nodes[0].gpu_type)} ".lstrip()  # one type a run
    queued = any(node.name == ANY_NODE for node in plan.nodes)
    where = "nodes that are not known yet" if queued else plural(len(plan.nodes), "node")
    makespan = estimate.makespan_seconds
    return [
        (
            "checkpoint",
            f"{plain(checkpoint.path)}  ({size(checkpoint.bytes)}, {checkpoint.parameters:,} "
            "parameters)",
        ),
        *_model(plan),
        (
            "suite",
            f"{plain(plan.suite.name)}: {plural(len(plan.datasets), 'dataset')}, {items:,} items"
            + (" (an estimate: not all prompts are built)" if plan.estimated else ""),
        ),
        (
            "trials",
            f"1 without GPUs, which asks {plain(str(plan.engine.args['base_url']))}"
            if found.run.settings.engine.elsewhere
            else f"{plural(len(plan.trials), f'{plan.engine.name} engine')} on "
            f"{plural(plan.gpus, f'{kind}GPU')} of {where}" + _each(plan),
        ),
        *_context(found),
        *_judge(found),
        ("makespan", duration(makespan) + _after_responses(found)),
        (
            "lower bound",
            f"{duration(estimate.lower_bound_seconds)}  "
            f"(the plan is {makespan / estimate.lower_bound_seconds:.2f} × it)",
        ),
        (
            "one job each",
            f"{duration(found.one_job_each)} ({found.one_job_each / makespan:.2f} × the plan), "
            f"longest first {duration(found.longest_first)} "
            f"({found.longest_first / makespan:.2f} ×)",
        ),
        ("GPU time", f"{estimate.gpu_hours:.2f} h, {estimate.gpu_idle_fraction:.0%} idle"),
        *_first_signal(found),
        *_stages(found),
        *_prompts(found),
    ]


def _model(plan: Plan) -> list[tuple[str, str]]:
    """Return what the model costs: what tokens go through, and what is kept of them."""
    model = plan.checkpoint
    words = []
    if model.experts:
        words.append(
            f"{model.active_parameters:,} parameters active "
            f"({model.experts_per_token} of {model.experts} experts)"
        )
    if model.quantization:
        words.append(f"{plain(model.quantization)} weights")
    if model.kv_bytes_per_token:
        words.append(f"{size(model.kv_bytes_per_token)} of cache a token")
    if model.windowed_bytes_per_token:
        kept = size(model.windowed_bytes_per_token)
        words.append(f"{kept} of it for the last {model.window:,} tokens only")
    if model.state_bytes:
        words.append(f"{size(model.state_bytes)} of state a sequence")
    rows = [("", ", ".join(words))] if words else []
    return [*_parts(model), *rows, *([("", plain(model.doubt))] if model.doubt else [])]


def _parts(model: PlanCheckpoint) -> list[tuple[str, str]]:
    """Return what a checkpoint is made of: the base of an adapter, or the members of an average."""
    if not model.shares:
        return [("", f"merged into {plain(part.path)}") for part in model.parts]
    total = sum(model.shares)
    return [
        ("", f"{share / total:.4g} × {plain(part.path)}")
        for part, share in zip(model.parts, model.shares, strict=True)
    ]


def _each(plan: Plan) -> str:
    """Return how many GPUs an engine has, of the numbers that are possible."""
    whole = " with whole experts" if plan.expert_parallel else ""
    if plan.nodes_per_trial > 1:
        return (
            f"; each has {plan.nodes_per_trial} nodes (pipeline parallel {plan.nodes_per_trial}) "
            f"with {plural(plan.tensor_parallel, 'GPU')} (tensor parallel "
            f"{plan.tensor_parallel}{whole})"
        )
    if plan.gpus_per_trial == 1 or not plan.tensor_degrees:
        return ""
    possible = ", ".join(map(str, plan.tensor_degrees))
    return f", {plan.gpus_per_trial} for each{whole} (possible: {possible})"


def _context(found: Review) -> list[tuple[str, str]]:
    """Return the context of the engines, and what decides it."""
    plan = found.plan
    if not plan.context:
        return []
    first, *others = found.needs
    expected = "expected to be " * plan.estimated
    words = f"{plan.context:,} tokens, {expected}enough for {plain(first.dataset)}"
    if others and others[0].tokens * 2 <= first.tokens:
        words += f" (the others need {others[0].tokens:,} at most)"
    if plan.context < plan.max_length:
        words += f"; prompts are cut to {plan.max_length:,}, as the harness cuts them"
    rows = [("context", words)]
    if cut := [need for need in found.needs if need.cut]:
        each = ", ".join(f"{plain(need.dataset)} {need.cut:,}" for need in cut)
        rows.append(("", f"prompts that are longer, and lose their beginning: {each}"))
    return rows


def _prompts(found: Review) -> list[tuple[str, str]]:
    """Return how long the prompts take that are not built yet."""
    if not found.unbuilt:
        return []
    count = len(found.plan.datasets)
    jobs = found.run.settings.harness.jobs
    words = (
        f"{count - len(found.unbuilt)} of {count} datasets are in the cache; building the others "
        f"takes about {duration(found.plan.build_seconds)} on {plural(jobs, 'core')} first"
    )
    return [("prompts", words)]


def _judge(found: Review) -> list[tuple[str, str]]:
    """Return what a judge would be asked, if it would be."""
    counts = questions_to_judge(found.run, found.plan)
    if not counts:
        return []
    settings = found.run.settings.judge
    each = ", ".join(f"{plain(name)} {count:,}" for name, count in counts.items())
    budget = f", of {settings.max_requests:,} at most" if settings.max_requests else ""
    asked = plain(settings.name) or "a judge"
    words = f"up to {plural(sum(counts.values()), 'question')} to {asked}{budget}, "
    words += f"about {sum(counts.values()) * EXCHANGE_TOKENS:,} tokens"
    rows = [("judge", f"{words} ({each})")]
    if (judge := found.plan.judge) is not None:
        begin, end = duration(judge.begin_seconds), duration(judge.end_seconds)
        where = f"in a job of its own on {plural(judge.gpus, 'GPU')}" if judge.gpus else "a server"
        rows.append(("", f"{where}: it answers from about {begin} to {end} after the submission"))
        rows.append(("last score", f"after about {duration(found.plan.last_score_seconds)}"))
    return rows


def _after_responses(found: Review) -> str:
    """Return when the last response comes, if metrics and scoring go on long after it."""
    answered, end = found.timeline.gpus_end, found.timeline.end
    if end - answered < WORTH_TELLING * end:
        return ""
    return f", with the last response after {duration(answered)}"


def _stages(found: Review) -> list[tuple[str, str]]:
    """Return after how many items a run may end that does not ask all of them at once."""
    costs, rows = found.plan.datasets, []
    if count := sum(dataset.sample is not None for dataset in found.run.suite.datasets):
        words = f"{plural(count, 'dataset')} in part; `resume RUN --full` asks what is left"
        rows.append(("sample", words))
    looks = max(len(cost.stages) for cost in costs)
    asked = (
        sum(cost.stages[n] if n < len(cost.stages) else cost.items for cost in costs)
        for n in range(looks)
    )
    items = ", ".join(f"{each:,}" for each in asked)
    words = f"compared after {items} items, and ended by the first decision"
    return [*rows, ("until decided", words)] if looks else rows


def _first_signal(found: Review) -> list[tuple[str, str]]:
    """Return when the slices of datasets are answered: by a tenth of the trials' time, and all."""
    done: dict[str, float] = {}
    for bar in (bar for trial in found.timeline.trials for bar in trial.shards):
        if bar.shard.signal:
            name = bar.shard.dataset
            done[name] = max(done.get(name, 0.0), bar.complete)
    if not done:
        return []
    ready = min(trial.ready for trial in found.timeline.trials)
    tenth = ready + (found.plan.estimate.makespan_seconds - ready) / 10
    early = sum(1 for when in done.values() if when <= tenth)
    words = f"of {early} of {len(found.plan.datasets)} datasets by {duration(tenth)}"
    if early < len(done):
        words += f", of {len(done)} by {duration(max(done.values()))}"
    return [("first signal", words)]


def node_table(found: Review) -> Table:
    """Return the nodes in the plan's order, with the moments of their trials."""
    by_node: dict[str, list[TrialBar]] = {}
    for bar in found.timeline.trials:
        by_node.setdefault(bar.trial.node, []).append(bar)
    return Table(
        "nodes: weights in memory, first and last response",
        ("node", "trials", "shards", "weights", "first", "last"),
        [
            (
                plain(", ".join(bars[0].trial.nodes) or name),
                str(len(bars)),
                str(sum(len(bar.shards) for bar in bars)),
                duration(min(bar.trial.start_seconds for bar in bars)),
                duration(min(bar.ready for bar in bars)),
                duration(max(bar.end for bar in bars)),
            )
            for name, bars in by_node.items()
        ],
    )


def dataset_table(found: Review) -> Table:
    """Return the datasets, those first that take most seconds of a GPU or of a core."""
    shards = Counter(shard.dataset for trial in found.plan.trials for shard in trial.shards)
    scored = ("scoring",) if found.plan.score_jobs else ()
    return Table(
        "datasets, most work first",
        ("dataset", "items", "shards", "GPU time", "metric CPU", *scored),
        [
            (
                plain(cost.name),
                f"{cost.items:,}",
                str(shards[cost.name]),
                duration(cost.gpu_seconds),
                duration(cost.metric_cpu_seconds) if cost.metric_cpu_seconds else "",
                *(duration(cost.score_seconds) if cost.score_seconds else "" for _ in scored),
            )
            for cost in by_work(found.plan)
        ],
    )


def by_work(plan: Plan) -> list[Cost]:
    """Return the datasets in the order of `dataset_table`."""

    def most_seconds(cost: Cost) -> float:
        return max(cost.gpu_seconds, cost.metric_cpu_seconds, cost.score_seconds)

    return sorted(plan.datasets, key=most_seconds, reverse=True)


def what_if_table(found: Review) -> Table:
    """Return what plans on other numbers of nodes come to; no rows unless asked for."""
    plan = found.plan
    chosen = len(plan.nodes), plan.gpus
    return Table(
        "what if there were",
        ("nodes", "GPUs", "makespan", "to bound", "GPU-hours", "idle", ""),
        [
            (
                str(size.nodes),
                str(size.gpus),
                duration(size.estimate.makespan_seconds),
                f"{size.estimate.makespan_seconds / size.estimate.lower_bound_seconds:.2f} ×",
                f"{size.estimate.gpu_hours:.2f}",
                f"{size.estimate.gpu_idle_fraction:.0%}",
                "← chosen" if (size.nodes, size.gpus) == chosen else "",
            )
            for size in found.plan.what_if
        ],
    )


def _cores_per_job(plan: Plan, offer: Offer) -> int:
    """Return a job's part of its node's free cores, as schedulers give them out with GPUs."""
    names = {node.name for node in plan.nodes}
    parts = [n.cpus // n.free_gpus for n in offer.nodes if n.name in names and n.free_gpus]
    return max(1, min([offer.metric_cpus, *(part * plan.gpus_per_trial for part in parts)]))
