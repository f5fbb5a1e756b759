"""Valid inputs made wrong at random: texts, bytes, and trees of JSON."""

import copy
import math
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.0, -0.0, 0.5, 1e-320,
    1e308, math.inf, -math.inf, math.nan, "", "x", "\x00", "\x1b[2J", "\u202e", "../../etc", "/",
    "." * 300, "é" * 5000, "[red]", "[/x]", "{{ x }}", "1", "1e999", "nan", "2024-01-01", [], {},
    [[]], [None] * 1000, {"": {}}, {"a": 1}, "\ud800",
]  # fmt: skip
"""Values that are wrong almost everywhere."""

SNIPPETS = [
    b"", b"\x00", b"\xff", b"\n", b"\t", b"- ", b": ", b"{", b"}", b"[", b"]", b'"', b"'", b"\\",
    b"&a ", b"*a ", b"!!python/object:os.system ", b"<<: ", b"? ", b"|\n", b"#", b"%", b"---\n",
    b"...\n", b"9" * 400, b"9" * 5000, b"1e999", b".nan", b"-.inf", b"null", b"0x" + b"f" * 400,
    b"[" * 300, b"{a: " * 300, b"\x1b[2J", b"\xe2\x80\xae", b"\xef\xbb\xbf", b"\xed\xa0\x80",
    b"a" * 10_000, b"1:2:3:4:5", b"2024-13-45", b"\x1e", b"|", b",", b";", b"=",
]  # fmt: skip
"""Bytes that mean something to one parser or another."""


def mutated_tree(random: Random, tree: Any, times: int = 2) -> Any:
    """A copy of a tree of JSON with some of its values or keys replaced, removed or repeated."""
    tree = copy.deepcopy(tree)
    for _ in range(random.randint(1, times)):
        places = list(_places(tree))
        if not places:
            return random.choice(ODD)
        holder, key = random.choice(places)
        match random.randrange(6):
            case 0 if isinstance(holder, dict):
                holder[str(random.choice(ODD))] = holder.pop(key)
            case 1:
                del holder[key]
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 3:
                other, place = random.choice(places)
                if (isinstance(other, dict) and place in other) or isinstance(other, list):
                    holder[key] = copy.deepcopy(other[place])
            case _:
                holder[key] = copy.deepcopy(random.choice(ODD))
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Where each value of a tree is: what holds it, and its key or index there."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(pairs):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def mutated_bytes(random: Random, content: bytes, times: int = 4) -> bytes:
    """Content with some of its bytes changed, removed, repeated, or snippets put among them."""
    for _ in range(random.randint(1, times)):
        start = random.randint(0, len(content))
        stop = min(len(content), start + random.choice((0, 1, 1, 2, 4, 8, 50)))
        match random.randrange(5):
            case 0:
                middle = bytes(random.randrange(256) for _ in range(stop - start))
            case 1:
                middle = b""
            case 2:
                middle = content[start:stop] * 2
            case 3:
                return content[:start]
            case _:
                middle = random.choice(SNIPPETS)
        content = content[:start] + middle + content[stop:]
    return content


@contextmanager
def within(most: int) -> Iterator[None]:
    """Fail if Python takes more than so many bytes of memory in a block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"
