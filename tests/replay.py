"""A plan replayed from the words of its documentation, apart from the program's own replay."""

from typing import Any

EPSILON = 1e-9


def replayed(plan: dict[str, Any], cluster: dict[str, Any]) -> dict[str, float]:
    """The estimate that a plan@1 on this cluster file must come to, but for its lower bound."""
    costs = {d["name"]: d for d in plan["datasets"]}
    link = cluster.get("storage_gigabits_per_node", 25) * 1e9
    start = cluster.get("engine_start_seconds", 20)
    staged = {s["node"]: s["bytes"] * 8 / link for s in plan["stages"]}
    complete: list[tuple[str, int, int, float]] = []
    end = held = idle = 0.0
    for trial in plan["trials"]:
        begin = staged[trial["node"]]
        now = last = begin + start
        busy = 0.0
        for shard in trial["shards"]:
            cost = costs[shard["dataset"]]
            seconds = cost["gpu_seconds"] * (shard["stop"] - shard["start"]) / cost["items"]
            seconds += cost["chunk_overhead_seconds"] if shard["start"] else 0.0
            done = now + max(seconds, cost["floor_seconds"])
            complete.append((shard["dataset"], shard["start"], shard["stop"], done))
            now, busy, last = now + seconds, busy + seconds, max(last, done)
        end = max(end, last)
        held += (last - begin) * trial["gpus"]
        idle += (last - begin - busy) * trial["gpus"]
    every_item_once(plan, complete)
    cores = cluster.get("metric_cpus") or sum(n["cpus"] for n in cluster["nodes"])
    return {
        "makespan_seconds": max(end, last_score(plan, costs, complete, cores)),
        "gpu_hours": held / 3600,
        "gpu_idle_fraction": idle / held,
    }


def every_item_once(plan: dict[str, Any], spans: list[tuple[str, int, int, float]]) -> None:
    """Fail unless the shards of each dataset are its items, each once."""
    for dataset in plan["datasets"]:
        mine = sorted(span[1:3] for span in spans if span[0] == dataset["name"])
        edges = [0, *(stop for _, stop in mine)]
        assert [start for start, _ in mine] == edges[:-1], dataset["name"]
        assert edges[-1] == dataset["items"], dataset["name"]


def last_score(
    plan: dict[str, Any],
    costs: dict[str, Any],
    complete: list[tuple[str, int, int, float]],
    cores: int,
) -> float:
    """Return the end of the last job on CPUs, metric jobs and then score jobs as listed.

    At each moment the first that can begin and fits starts. A score job can begin when nothing else
    of its dataset is left.
    """
    waiting: list[tuple[str, float, int, float]] = []
    assert all(1 <= job["cpus"] <= cores for job in plan["metric_jobs"])
    for job in plan["metric_jobs"]:
        cost = costs[job["dataset"]]
        share = (job["stop"] - job["start"]) / cost["items"]
        release = max(
            done
            for dataset, start, stop, done in complete
            if dataset == job["dataset"] and start < job["stop"] and job["start"] < stop
        )
        seconds = cost["metric_cpu_seconds"] * share / job["cpus"]
        waiting.append((job["dataset"], release, job["cpus"], seconds))
    scored = {job["dataset"]: job for job in plan.get("score_jobs", [])}
    assert set(scored) == {name for name, cost in costs.items() if cost.get("score_seconds")}
    scores = []
    for name, job in scored.items():
        assert job["cpus"] == 1
        assert job["seconds"] == costs[name]["score_seconds"]
        scores.append((name, max(done for dataset, _, _, done in complete if dataset == name)))
    running: list[tuple[str, float, int]] = []
    now = last = 0.0
    while waiting or scores:
        before = len(waiting) + len(scores)
        running = [each for each in running if each[1] > now + EPSILON]
        for entry in list(waiting):
            name, release, cpus, seconds = entry
            if release <= now + EPSILON and cpus + sum(c for *_, c in running) <= cores:
                waiting.remove(entry)
                running.append((name, now + seconds, cpus))
                last = max(last, now + seconds)
        for name, release in list(scores):
            left = any(name == other for other, *_ in [*waiting, *running])
            if release <= now + EPSILON and not left and sum(c for *_, c in running) < cores:
                scores.remove((name, release))
                running.append((name, now + scored[name]["seconds"], 1))
                last = max(last, now + scored[name]["seconds"])
        if len(waiting) + len(scores) < before:
            continue  # what has just begun may have ended, if it takes no time
        moments = [ends for _, ends, _ in running]
        moments += [release for _, release, _, _ in waiting] + [release for _, release in scores]
        now = min((moment for moment in moments if moment > now + EPSILON), default=now)
    return last
