"""Match names of tensors with the patterns of a mapping, and compute its numbers.

In a pattern `<layer>` is a number, `<layer+2>` one that is larger by 2, `<weight|bias>` one of
these words, and `*` any text. A number between dots may be lacking: then the tensor has all of
them, stacked in its first dimension.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval._text_config import HEADS, KV_HEADS, WIDTHS, TextConfig
from coordinate_eval.coordinator.inputs.checkpoints.model.layers import EXPERTS, LAYERS
from coordinate_eval.errors import UserError
from coordinate_eval.records.names import Rule

_HOLE = re.compile(r"(\.?)<([^<>+]+)(?:\+(\d{1,6}))?>(?=(\.|$)?)|(\*)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module"
    r"|module)\."
)
_MOST_SHARED = 8  # parts of a prefix that all names share
_MOST = 10**9
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_NAMED: Final = {
    "heads": HEADS,
    "kv_heads": (*KV_HEADS, *HEADS),
    "experts": EXPERTS,
    "layers": LAYERS,
    "width": WIDTHS,
}
"""Numbers that configs have by many names."""


class Pattern(NamedTuple):
    """A pattern of names, compiled."""

    text: str
    regex: re.Pattern[str]
    numbers: tuple[str, ...]
    """Its numbers, in order."""

    def match(self, name: str) -> dict[str, str] | None:
        """Return the numbers and words of a name; None if it does not match."""
        found = self.regex.fullmatch(name)
        if found is None:
            return None
        values = {}
        for place, (hole, more) in enumerate(_holes(self.text).items()):
            value = found[f"hole{place}"]
            if more and value is not None:
                if int(value) < more:
                    return None
                value = str(int(value) - more)
            if value is not None:
                values[hole] = value
        return values

    def filled(self, values: Mapping[str, object]) -> str:
        """Return the name with these numbers and words."""
        return _HOLE.sub(lambda hole: f"{hole[1]}{values[hole[2]]}", self.text)


def holes(text: str) -> list[str]:
    """Return the numbers and words of a pattern, each once."""
    return list(_holes(text))


@cache
def _holes(text: str) -> dict[str, int]:
    """Return the numbers and words of a pattern, and how much larger a number is there."""
    return {found[2]: int(found[3] or 0) for found in _HOLE.finditer(text) if found[2]}


@cache
def pattern(text: str) -> Pattern:
    """Return the compiled pattern of a text."""
    places = {hole: place for place, hole in enumerate(holes(text))}
    seen: set[str] = set()

    def hole(found: re.Match[str]) -> str:
        dot, inner, _, follows, star = found.groups()
        if star:
            return r".*?"
        group, number = f"hole{places[inner]}", "|" not in inner
        if inner in seen:
            return rf"\.(?P={group})" if dot else f"(?P={group})"
        seen.add(inner)
        words = r"\d{1,6}" if number else "|".join(map(re.escape, inner.split("|")))
        whole = rf"(?P<{group}>{words})"
        if dot and number and follows is not None:
            return rf"(?:\.{whole})?"
        return (r"\." if dot else "") + whole

    made, end = "", 0
    for found in _HOLE.finditer(text):
        made += re.escape(text[end : found.start()]) + hole(found)
        end = found.end()
    made += re.escape(text[end:])
    return Pattern(text, re.compile(made), tuple(h for h in places if "|" not in h))


@dataclass(frozen=True)
class Member:
    """A tensor that a rule matches."""

    rule: int
    place: int
    """Position among the rule's sources."""
    values: Mapping[str, str]


class Matched(NamedTuple):
    """The names of a source, each with its rule."""

    members: Mapping[str, Member]
    left_over: Sequence[str]
    """Names that no rule matches."""


def match(names: Iterable[str], rules: Sequence[Rule]) -> Matched:
    """Match names with rules, also below wrappers and a prefix that all names share."""
    names = list(names)
    short = {name: _WRAPPERS.sub("", name) for name in names}
    found = _match(short, rules)
    for _ in range(_MOST_SHARED):
        if not found.left_over:
            break
        heads = {each.partition(".")[0] for each in short.values()}
        if len(heads) != 1 or not all("." in each for each in short.values()):
            break
        short = {name: each.partition(".")[2] for name, each in short.items()}
        below = _match(short, rules)
        if len(below.left_over) < len(found.left_over):
            found = below
    return found


def _match(short: Mapping[str, str], rules: Sequence[Rule]) -> Matched:
    """Match shortened names, by what they are shortened from."""
    candidates = [
        (index, place, pattern(text))
        for index, rule in enumerate(rules)
        for place, text in enumerate(rule.source)
    ]
    # Names that differ in numbers alone match the same, unless a pattern has such a number itself.
    special = any(_NUMBER.search(each.text) for _, _, each in candidates)
    known: dict[str, tuple[int, int, Pattern] | None] = {}
    members: dict[str, Member] = {}
    left_over: list[str] = []
    for name, each in short.items():
        alike = each if special else _NUMBER.sub("0", each)
        if alike not in known:
            known[alike] = next((c for c in candidates if c[2].regex.fullmatch(each)), None)
        candidate = known[alike]
        values = candidate[2].match(each) if candidate else None
        if candidate is None or values is None:
            left_over.append(name)
        else:
            members[name] = Member(candidate[0], candidate[1], values)
    return Matched(members, left_over)


class Numbers:
    """The numbers of a mapping, computed from a config."""

    def __init__(self, config: TextConfig, trainer: str) -> None:
        """Take a config, and the trainer for messages."""
        self._config, self._trainer = config, trainer
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Return the number that a text such as `heads / kv_heads` stands for.

        Raises:
            UserError: The config lacks a number, or it is no whole one.
        """
        if text not in self._known:
            try:
                value = self._of(ast.parse(text.strip(), mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise UserError(
                    f"mapping {self._trainer}: {brief(text)} is no number of the config: "
                    "use its keys, heads, kv_heads, head_dim, experts, numbers, + - * /, if == else"
                ) from error
            if not 0 <= value <= _MOST:
                raise UserError(f"mapping {self._trainer}: {brief(text)} is {value}")
            self._known[text] = value
        return self._known[text]

    def _of(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as value):
                return min(value, _MOST + 1)
            case ast.Name(id=name):
                return self._named(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                one, other = self._of(left), self._of(right)
                if isinstance(op, ast.Div) and (not other or one % other):
                    raise UserError(
                        f"mapping {self._trainer}: {one} / {other} is no whole number, by "
                        f"{self._config.file}"
                    )
                return _OPERATIONS[type(op)](one, other)
            case ast.IfExp(
                test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]),
                body=one,
                orelse=two,
            ):
                return self._of(one if self._of(left) == self._of(right) else two)
        raise ValueError("unknown")

    def _named(self, name: str) -> int:
        if name == "head_dim" and not self._config.told("head_dim"):
            return self._named("width") // self._named("heads")
        value = self._config.number(*_NAMED.get(name, (name,)), most=_MOST)
        if value is None:
            raise UserError(
                f"{self._config.file} has no {name}, which the mapping {self._trainer} needs"
            )
        return value
