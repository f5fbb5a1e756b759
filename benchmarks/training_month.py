"""Goodput of a simulated month of training at 1,000 nodes, with and without the guard

    python benchmarks/training_month.py

*Failures*: 3.8 a day, as 419 in 54 days on 2,048 nodes (Llama Team, "The Llama 3 Herd of Models",
2024), with the reasons and the minutes until people had restarted the job of Table 3 in Hu et al.,
"Characterization of Large Language Model Development in the Datacenter" (NSDI 2024): a large job
meets a reason in proportion to its occurrences times the GPUs of its jobs. *Divergences*: one in
ten days. A checkpoint is saved every 30 minutes, and a start takes 15 minutes.

*Assumed*: half of the hardware's faults stay on their node, a fifth of the framework's errors come
again, the script's always do, and storage or a server is away for half an hour. A person restarts
after the published time, exponentially distributed and five minutes at least, removes the cause,
and sees a divergence within eight hours. *Restart from the latest* starts again after two
minutes, and calls a person after three starts in vain. *Guard* follows its own table
(`guarding/decide.py`) by the reason: a test of the nodes takes ten minutes and finds nine of ten
bad ones; it goes back after a divergence only in the last row, 15 minutes after its onset. The
other rows wait for a person, who goes back as well.

*Goodput* is time of steps that count, as a share of all. *Calls* are those of a person.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from coordinate_eval.coordinator.training.guarding.decide import Follows, of_cause
from coordinate_eval.diagnosis import rules
from coordinate_eval.diagnosis.cause import Cause

REASONS = {  # occurrences, mean GPUs, mean minutes until people had restarted the job
    "NVLink Error": (54, 800, 95.6), "CUDA Error": (21, 847, 78.3),
    "Node Failure": (16, 712, 102.8), "ECC Error": (12, 680, 2.8),
    "Network Error": (12, 758, 592.1), "Connection Error": (147, 29, 0.8),
    "S3 Storage Error": (10, 422, 6.2), "NCCL Timeout Error": (6, 596, 66.7),
    "NCCL Remote Error": (3, 1152, 0.0), "Dataloader Killed": (6, 445, 115.1),
    "Attribute Error": (67, 228, 2.4), "Out of Memory Error": (14, 572, 122.7),
    "Runtime Error": (65, 441, 10.9), "Assertion Error": (105, 413, 185.9),
    "Value Error": (33, 387, 27.4), "Zero Division Error": (5, 499, 2.5),
    "Model Loading Error": (104, 8, 0.0), "Dataset Loading Error": (5, 1, 0.0),
    "File Not Found Error": (568, 21, 0.4), "OS Error": (266, 8, 0.3), "Type Error": (620, 18, 0.2),
    "Name Error": (18, 247, 2.9), "Permission Error": (7, 438, 2.4), "Import Error": (111, 93, 0.7),
    "Key Error": (260, 7, 0.1), "Syntax Error": (10, 391, 1.7), "Argument Error": (3, 344, 2.7),
    "Called Process Error": (4, 256, 11.7), "Index Error": (23, 6, 0.8),
}  # fmt: skip

MONTH = 30 * 24 * 60.0  # minutes, as all times here
BETWEEN_FAILURES = 54 * 24 * 60 / 419 * 2048 / 1000
BETWEEN_DIVERGENCES = 10 * 24 * 60.0
SAVED, START, AGAIN, TEST, AWAY, PERSON = 30.0, 15.0, 2.0, 10.0, 30.0, 5.0


@dataclass
class Fault:
    """What ended a training, as it would end the next start as well while it stays."""

    reason: str
    stays: bool
    minutes: float
    """Until a person has restarted the training, without the cause."""


Policy = Callable[[random.Random, Fault, int], tuple[float, bool, bool]]
"""A fault and the starts in vain after it → minutes until the next start, whether the cause is
gone then, and whether a person was called."""


def person(draw: random.Random, fault: Fault, vain: int) -> tuple[float, bool, bool]:
    """Wait for a person, each time."""
    return fault.minutes, True, True


def latest(draw: random.Random, fault: Fault, vain: int) -> tuple[float, bool, bool]:
    """Start again from the latest checkpoint, whatever it was."""
    return person(draw, fault, vain) if vain >= 3 else (AGAIN, not fault.stays, False)


def guard(draw: random.Random, fault: Fault, vain: int) -> tuple[float, bool, bool]:
    """Do what follows a cause by the guard's own table."""
    known = rules.shipped().reasons[fault.reason]
    cause = Cause(reason=fault.reason, category=known.category, cure=known.cure, then=known.then)
    follows = of_cause(cause)
    if follows is Follows.STOP or vain >= 5:
        return person(draw, fault, vain)
    if follows is Follows.OTHER_NODES:
        return TEST, not fault.stays or draw.random() < 0.9, False
    pause = AGAIN * 2**vain
    if follows is Follows.LATER:
        return max(pause, AWAY / 2), vain > 0, False
    return pause, not fault.stays, False


def month(seed: int, policy: Policy, *, goes_back: bool) -> tuple[float, int]:
    """Return the goodput of a month, and how often a person was called."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    good = now = 0.0
    calls = 0
    while now < MONTH:
        now += START
        ran = draw.expovariate(1 / BETWEEN_FAILURES)
        diverges = draw.expovariate(1 / BETWEEN_DIVERGENCES)
        fault, seen = _fault(draw), draw.uniform(0, 480)
        if diverges < ran:
            seen = 15.0 if goes_back else seen
            calls += not goes_back
            worth, now = diverges - diverges % SAVED, now + diverges + seen
            good += worth if now < MONTH else max(0.0, worth - (now - MONTH))
            continue
        worth = min(ran, max(0.0, MONTH - now))
        good += worth if now + ran >= MONTH else ran - ran % SAVED
        now += ran
        vain, gone = 0, False
        while not gone and now < MONTH:
            wait, gone, called = policy(draw, fault, vain)
            calls += called
            now += wait + (0 if gone else START)
            vain += 1
    return good / MONTH, calls


def _fault(draw: random.Random) -> Fault:
    weights = [count * gpus for count, gpus, _ in REASONS.values()]
    (reason,) = draw.choices(list(REASONS), weights)
    known = rules.shipped().reasons[reason]
    chance = {"infrastructure": 0.5, "framework": 0.2}.get(known.category, 1.0)
    stays = draw.random() < (1.0 if known.then == "wait" else chance)
    mean = max(REASONS[reason][2], 1e-9)
    return Fault(reason, stays, max(PERSON, draw.expovariate(1 / mean)))


def main(seeds: int = 200) -> None:
    """Print a line for each way to keep a training alive."""
    ways: list[tuple[str, Policy, bool]] = [
        ("a person on call", person, False),
        ("restart from the latest", latest, False),
        ("guard", guard, False),
        ("guard that goes back", guard, True),
    ]
    print(f"{'':<26}{'goodput':>9}{'  of nine in ten months':>24}{'calls':>8}")
    for name, policy, goes_back in ways:
        found = [month(seed, policy, goes_back=goes_back) for seed in range(seeds)]
        shares = sorted(share for share, _ in found)
        low, high = shares[seeds // 20], shares[-seeds // 20 - 1]
        calls = median(count for _, count in found)
        between = f"{low:.1%} to {high:.1%}"
        print(f"{name:<26}{median(shares):>9.1%}{between:>24}{calls:>8.0f}")


if __name__ == "__main__":
    main()
