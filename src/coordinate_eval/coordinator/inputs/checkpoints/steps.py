"""The training step that a checkpoint's name tells.

Names also hold sizes, versions, counts of tokens, epochs and dates. A wrong step puts scores into
the wrong place of a curve, and `--step` gives one that is not told: when in doubt, there is none.
"""

import re
from decimal import Decimal
from pathlib import Path
from typing import Final

NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?[kKmM]?"
"""The forms of a step after a word such as `step`: 1000, 50K, 2.5k, 1M."""

# Not in a longer number, nor before the unit of tokens and parameters: 105b, 3T.
_END = r"(?![0-9]|[.,][0-9]|e[0-9]|[bt](?![a-z]))"
_JOINT = r"[-_=.]?"
_UPDATES = r"(?:step|iter(?:ation)?|update)s?"
_NUMBER = rf"({NUMBER}(?![a-z])|[0-9]+(?![km.](?![a-z]))){_END}"
_DATE = (
    r"(?:(?:19|20)[0-9]{2}[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12][0-9]|3[01]))"  # 2025-01-31
)

# The first that is found counts, and of several such numbers the last.
_TOLD = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # step-1000, global_step1000, iter_0001000, step=1000; Composer's ep0-ba1000, of batches
        rf"(?:{_UPDATES}|(?<![a-z])(?:ba|it)){_JOINT}{_NUMBER}",
        # 1000-steps, 10k_iterations
        rf"(?<![0-9.,a-z])({NUMBER})[-_]?(?:steps|iters|iterations|updates)(?![a-z])",
        # fairseq's checkpoint_3_1000.pt, of epoch and updates
        rf"checkpoint_[0-9]+_([0-9]+){_END}",
        rf"(?:ckpt|checkpoint){_JOINT}(?!{_DATE}){_NUMBER}",
    )
)
_FORMS = (
    r"(?:[-_.](?:hf|bf16|fp16|fp32|fp8|pt|pth|bin|ckpt|safetensors|unsharded|merged|ema|final))*"
)
_LONE = re.compile(rf"(?:^|(?<=[-_]))([0-9]+){_FORMS}$", re.IGNORECASE)
_NO_STEP_BEFORE = re.compile(
    r"(?:epoch|ep|seed|run|job|exp|trial|version|ver|rev|rank|node|stage|phase|part|fold|lr|bs|batch|"
    r"len|length|ctx|context|seq|vocab|dim|loss|acc|size|port|tokens?)[-_]?$",
    re.IGNORECASE,
)
_SHARD = re.compile(r"[0-9]-of-[0-9]")
_MOST = 10**12
_LEAST_LONE = 100  # beside other words: below are versions, seeds and experiments
_MAYBE_DATE = re.compile(  # of releases: 250131, 2501, 0324, 2025
    r"[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])"
    r"|2[0-9](?:0[1-9]|1[0-2])|0[0-9]{3}|(?:19|20)[0-9]{2}"
)


def step_of(checkpoint: str) -> int | None:
    """Return the training step that a checkpoint's name tells, or None.

    The number after `step`, `iter`, `update`, `ba`, `ckpt` or `checkpoint`, in thousands after a
    `k`: 1000 for `step-1000` and `step1000-tokens4B`, 50,000 for `step-50K-105b`. Else a number at
    the end, if it is the whole name or unlikely to be anything else: 1000 for `llama-7b-1000-hf`.
    Without one, the folder above counts, 1000 for `step-1000/hf` and `1000/model.pt`; and the
    one above that if neither name has a digit, as in `global_step_1000/actor/huggingface`.
    """
    path = Path(checkpoint)
    names = [path.name, path.parent.name]
    if not any(map(str.isdecimal, "".join(names))):
        names.append(path.parent.parent.name)
    for name in names:
        step = _told(name)
        if step is None and (name is names[0] or name.isdecimal()):
            step = _lone(name)
        if step is not None:
            return step if step <= _MOST else None
    return None


def number(text: str) -> int | None:
    """Return the step that a `NUMBER` is: 2500 for 2.5k. None if it is no whole number."""
    factor = {"k": 10**3, "m": 10**6}.get(text[-1].lower(), 1)
    value = Decimal(text.rstrip("kKmM")) * factor
    whole = value == value.to_integral_value() and (factor > 1 or "." not in text)
    return int(value) if whole else None


def _told(name: str) -> int | None:
    for pattern in _TOLD:
        if found := pattern.findall(name):
            return number(found[-1])
    return None


def _lone(name: str) -> int | None:
    found = _LONE.search(name)
    if found is None or re.search(_DATE, name) or _SHARD.search(name):
        return None
    value, before = int(found[1]), name[: found.start()]
    if found[1].startswith("00"):  # padded, so that names sort
        return value
    # A power of two is the length of a context, or a size.
    unlikely = value < _LEAST_LONE or value & (value - 1) == 0 or _MAYBE_DATE.fullmatch(found[1])
    return None if before and (unlikely or _NO_STEP_BEFORE.search(before)) else value
