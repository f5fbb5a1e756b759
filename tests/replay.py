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
        "makespan_seconds": max(end, last_answer(plan, costs, complete, cores)),
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


def last_answer(
    plan: dict[str, Any],
    costs: dict[str, Any],
    complete: list[tuple[str, int, int, float]],
    cores: int,
) -> float:
    """Return the last metric job's end: at each moment, the first in the list that fits starts."""
    waiting = []
    assert all(1 <= job["cpus"] <= cores for job in plan["metric_jobs"])
    for job in plan["metric_jobs"]:
        cost = costs[job["dataset"]]
        share = (job["stop"] - job["start"]) / cost["items"]
        release = max(
            done
            for dataset, start, stop, done in complete
            if dataset == job["dataset"] and start < job["stop"] and job["start"] < stop
        )
        waiting.append((release, job["cpus"], cost["metric_cpu_seconds"] * share / job["cpus"]))
    running: list[tuple[float, int]] = []
    now = last = 0.0
    while waiting:
        running = [(ends, cpus) for ends, cpus in running if ends > now + EPSILON]
        for entry in list(waiting):
            release, cpus, seconds = entry
            if release <= now + EPSILON and cpus + sum(c for _, c in running) <= cores:
                waiting.remove(entry)
                running.append((now + seconds, cpus))
                last = max(last, now + seconds)
        moments = [ends for ends, _ in running] + [release for release, _, _ in waiting]
        now = min((moment for moment in moments if moment > now + EPSILON), default=now)
    return last
