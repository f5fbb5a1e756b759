"""Rubrics: what a file says, and messages that name its line."""

from pathlib import Path

import pytest

from coordinate_eval.coordinator.inputs.suites import rubric, suite
from coordinate_eval.errors import ForeignError, UserError
from coordinate_eval.records import Message, Rubric

SINGLE = """\
prompts:
  helpful: "Rate it: {{ answer }}"
patterns: '\\[\\[(\\d+)\\]\\]'
scale: [1, 10]
"""
PAIR = """\
pair: true
id: n
prompts:
  better:
  - {role: system, content: You compare.}
  - {role: user, content: "{{ answer_a }} or {{ answer_b }}?"}
patterns: ['\\[\\[(A|B)\\]\\]', '(A|B)$']
take: last
labels: {A: [1], B: [0]}
"""


def parse(text: str) -> Rubric:
    return rubric.parse(text, where="my.yaml", name="my")


def test_a_text_is_one_message_of_the_user() -> None:
    made = parse(SINGLE)
    assert made.name == "my"
    assert made.prompts == {"helpful": [Message(role="user", content="Rate it: {{ answer }}")]}
    assert (made.temperature, made.max_tokens, made.scale) == (0.0, 2048, (1, 10))


def test_a_pair_has_sides() -> None:
    made = parse(PAIR)
    assert [message.role for message in made.prompts["better"]] == ["system", "user"]
    assert made.labels == {"A": [1], "B": [0]}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- a\n", 1, "a rubric must be a mapping"),
        (SINGLE + "scales: [1, 2]\n", 5, "unknown key 'scales'"),
        (SINGLE.replace("answer }}", "answer"), 2, "the template of prompt helpful: line 1"),
        (SINGLE.replace("{{ answer }}", "{% if a %}"), 2, "the template of prompt helpful"),
        (
            SINGLE.replace("answer", "-" * 30_000 + "1"),
            2,
            "the template of prompt helpful: too many",
        ),
        (SINGLE.replace("{{ answer }}", "it"), 2, "prompt helpful lacks {{ answer }}"),
        (PAIR.replace("answer_b", "question"), 4, "prompt better lacks {{ answer_b }}"),
        (SINGLE.replace("(\\d+)", "\\d+"), 3, "needs a group"),
        (SINGLE.replace("(\\d+)", "(\\d+"), 3, "pattern"),
        (SINGLE.replace("[1, 10]", "[10, 1]"), 4, "the least rating comes first"),
        (SINGLE.replace("[1, 10]", "[1, .inf]"), 4, "scale"),
        (SINGLE + "labels: {A: [1]}\n", 5, "a scale or labels, not both"),
        (SINGLE + "temperature: 3\n", 5, "temperature"),
        (SINGLE + "take: best\n", 5, "take"),
        (SINGLE + "style_control: true\n", 5, "needs a pair"),
        ("prompts: {}\npatterns: (.)\n", 1, "prompts must be a mapping"),
        ("patterns: (.)\n", 1, "prompts must be a mapping"),
        ("prompts: {a: '?'}\n", 1, "patterns must be a list"),
        (PAIR.replace("id: n\n", ""), 1, "a pair needs `id`"),
        (PAIR.replace("labels: {A: [1], B: [0]}\n", ""), 1, "a pair needs labels"),
        (PAIR.replace("[1]", "[2]"), 9, "from 0 to 1"),
        (PAIR + "aggregation: median\n", 10, "the mean of battles"),
        (SINGLE + "aggregation: best\n", 5, "aggregation"),
        (PAIR.replace("[1]", "[]"), 9, "at least one value"),
        (PAIR.replace("role: system", "role: judge"), 5, "needs a role"),
        (PAIR.replace("role: system, ", "rule: system, "), 5, "unknown key 'rule' in a message"),
    ],
)
def test_a_mistake_has_a_line(text: str, line: int, words: str) -> None:
    with pytest.raises(UserError, match=rf"^rubric my\.yaml, line {line}: ") as caught:
        parse(text)
    assert words in str(caught.value)


def _suite(folder: Path, key: str) -> Rubric | None:
    (folder / "s.yaml").write_text(f"datasets:\n- {{name: a, task: t, rubric: {key}}}\n")
    return suite.load(str(folder / "s.yaml")).datasets[0].rubric


def test_a_file_is_relative_to_the_suite_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "mine.yaml").write_text(SINGLE)
    found = _suite(tmp_path / "inner", "mine.yaml")
    assert found is not None and found.name == "mine"
    (tmp_path / "outer.yaml").write_text("extends: inner/s.yaml\n")
    assert suite.load(str(tmp_path / "outer.yaml")).datasets[0].rubric == found


def test_the_rubric_is_part_of_the_digest(tmp_path: Path) -> None:
    digests = set()
    for text in (SINGLE, SINGLE.replace("10", "5")):
        (tmp_path / "mine.yaml").write_text(text)
        _suite(tmp_path, "mine.yaml")
        digests.add(suite.load(str(tmp_path / "s.yaml")).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("key", ["none", "none.yaml", "[a, b]"])
def test_a_rubric_that_is_not_there_is_named_with_the_line_of_the_suite(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(UserError, match=r"s\.yaml, line 2: .*rubric"):
        _suite(tmp_path, key)


def test_a_rubric_needs_a_task(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SINGLE)
    text = "datasets:\n- {name: mmlu, rubric: mine.yaml}\n"
    with pytest.raises(UserError, match="line 2: dataset mmlu has a rubric and needs a task"):
        suite.parse(text, where="s.yaml", folder=tmp_path)


def test_a_rubric_of_others_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SINGLE)
    (tmp_path / "mine.yaml").chmod(0o666)
    with pytest.raises(ForeignError, match="rubric"):
        _suite(tmp_path, "mine.yaml")
