"""Bad nodes are named by which worlds fail, whichever they are."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples

from coordinate_eval.coordinator.doctor.pairing import Tried, Verdict, next_worlds, shows, verdicts


@dataclass
class Cluster:
    """Nodes of which some are bad: a world fails if and only if it has one of them."""

    nodes: list[str]
    broken: set[str] = field(default_factory=set)
    """They fail alone as well."""
    dead: set[str] = field(default_factory=set)
    """They fail before the others of their world have begun."""
    cut_off: set[str] = field(default_factory=set)
    """They fail with others only."""
    busy: set[str] = field(default_factory=set)
    """Nothing runs there."""
    rounds: list[list[tuple[str, ...]]] = field(default_factory=list)

    def passes(self, world: tuple[str, ...]) -> bool:
        bad = self.broken | self.dead if len(world) == 1 else self.broken | self.dead | self.cut_off
        return bad.isdisjoint(world)

    def test(self) -> dict[str, Verdict]:
        """The verdicts, when nothing more is asked for."""
        tried: list[Tried] = []
        while worlds := next_worlds(self.nodes, tried):
            self.rounds.append(worlds)
            at_once = [node for world in worlds for node in world]
            assert len(at_once) == len(set(at_once)), "a node in two worlds at once"
            for world in worlds:
                early = [
                    Tried((node,), passed=False, absent=frozenset({node}) & self.busy)
                    for node in world
                    if node in self.dead | self.busy
                ]
                tried += early or [Tried(world, self.passes(world))]
        assert len({frozenset(each.nodes) for each in tried}) == len(tried), "tried twice"
        return verdicts(self.nodes, tried)


def of_four(kind: str, *bad: str) -> Cluster:
    """Four nodes, these of which are bad in this way."""
    cluster = Cluster(["a", "b", "c", "d"])
    setattr(cluster, kind, {*bad})
    return cluster


def named(found: dict[str, Verdict], *wanted: Verdict) -> set[str]:
    return {node for node, verdict in found.items() if verdict in wanted}


NAMES = [f"n{number}" for number in range(1, 14)]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to thirteen nodes of any kinds."""
    nodes = NAMES[: draw(st.integers(1, len(NAMES)))]
    kinds = draw(st.lists(st.sampled_from("gbcdu"), min_size=len(nodes), max_size=len(nodes)))

    def of(kind: str) -> set[str]:
        return {node for node, its in zip(nodes, kinds, strict=True) if its == kind}

    return Cluster(nodes, broken=of("b"), dead=of("d"), cut_off=of("c"), busy=of("u"))


@examples(400)
@given(clusters())
def test_every_bad_node_is_named_and_no_other(cluster: Cluster) -> None:
    found = cluster.test()
    broken = cluster.broken | cluster.dead
    good = {*cluster.nodes} - broken - cluster.cut_off - cluster.busy
    assert named(found, Verdict.UNTESTED) == cluster.busy
    if len(good) >= 2:
        assert named(found, Verdict.GOOD) == good
        assert named(found, Verdict.BAD) == broken | cluster.cut_off
        return
    # No world of two can pass. Only what fails alone, where another does not, is named.
    witness = bool(good or cluster.cut_off)
    assert named(found, Verdict.BAD) == (broken if witness else set())
    assert named(found, Verdict.GOOD) == set()
    if not witness:
        assert named(found, Verdict.SUSPECT) == broken
    if len(good | cluster.cut_off) > 1:
        assert named(found, Verdict.SUSPECT) == good | cluster.cut_off


@examples(200)
@given(clusters())
def test_two_rounds_do_where_as_many_nodes_passed_as_are_in_doubt(cluster: Cluster) -> None:
    cluster.dead.clear()
    cluster.busy.clear()
    cluster.test()
    first = cluster.rounds[0]
    count = len(cluster.nodes)
    if count > 1:
        assert sorted(map(len, first)) == [2] * (count // 2 - count % 2) + [3] * (count % 2)
    passed = sum(len(world) for world in first if cluster.passes(world))
    if 0 < count - passed <= passed:
        assert len(cluster.rounds) == 2


@pytest.mark.parametrize("kind", ["broken", "cut_off", "dead"])
def test_a_node_two_nodes_and_all_but_one(kind: str) -> None:
    one = of_four(kind, "c")
    assert named(one.test(), Verdict.BAD) == {"c"}
    second = [("d", "a")] if kind == "dead" else [("c", "a"), ("d", "b")]
    assert one.rounds == [[("a", "b"), ("c", "d")], second]
    two = of_four(kind, "b", "c")
    assert named(two.test(), Verdict.BAD) == {"b", "c"}
    alone = [("a",), ("b",), ("c",), ("d",)]  # no world has passed
    assert two.rounds[1] == ([("a", "d")] if kind == "dead" else alone)
    all_but_one = of_four(kind, "a", "c", "d").test()
    if kind != "cut_off":
        assert named(all_but_one, Verdict.BAD) == {"a", "c", "d"}
        assert named(all_but_one, Verdict.ALONE) == {"b"}
    else:  # each passes alone and none with another: which one is good, nobody can say
        assert named(all_but_one, Verdict.SUSPECT) == {"a", "b", "c", "d"}


def test_bad_ones_among_one_to_three_nodes_are_found() -> None:
    assert next_worlds([], []) == []
    assert Cluster(["a"]).test() == {"a": Verdict.ALONE}
    assert Cluster(["a"], broken={"a"}).test() == {"a": Verdict.SUSPECT}
    assert named(Cluster(["a", "b"], broken={"a"}).test(), Verdict.BAD) == {"a"}
    assert named(Cluster(["a", "b", "c"], cut_off={"b"}).test(), Verdict.BAD) == {"b"}


def test_a_partner_that_goes_away_is_replaced() -> None:
    nodes = ["a", "b", "c", "d"]
    tried = [
        Tried(("a", "b"), True),
        Tried(("c", "d"), False),
        Tried(("c", "a"), False, frozenset({"a"})),  # somebody else has taken it meanwhile
        Tried(("d", "b"), False),
    ]
    assert next_worlds(nodes, tried) == [("c", "b")]
    tried.append(Tried(("c", "b"), True))
    assert next_worlds(nodes, tried) == []
    assert named(verdicts(nodes, tried), Verdict.GOOD) == {"a", "b", "c"}
    assert shows("d", tried) == tried[3]
    assert shows("a", tried) is None
