"""What a suite asks for and nobody has is said at once, without the harness."""

from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.coordinator.inputs.suites.known_tasks import (
    check_chat_template,
    check_generation,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Dataset, Suite

TURNS = 'task: turns\nmetadata: {turn_template: "{{question}}"}\n'
FILES = {
    "plain.yaml": "task: plain\nmetadata: {version: 1}\n",
    "turns.yaml": TURNS,
    "included.yaml": "include: turns.yaml\ntask: included\n",
    "group.yaml": "group: some\ntask: [turns]\n",
    "tagged.yaml": "task: tagged\ntag: any\n",
    "alone.txt": TURNS,
}


def suite(*datasets: dict[str, Any], folder: Path | None = None) -> Suite:
    made = [Dataset(name=f"d{n}", **given) for n, given in enumerate(datasets)]
    return Suite(name="s", digest="d", include_path=[str(folder)] if folder else [], datasets=made)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"typical_p": 0.9}, "typical_p=0.9 is not supported"),
        ({"num_beams": 4}, "beam search"),
        ({"max_length": 9}, "set max_gen_toks"),
        ({"temperature": "hot"}, "temperature='hot'"),
    ],
)
def test_generation_arguments_that_no_engine_honours(given: dict[str, Any], words: str) -> None:
    asks = {"do_sample": True, "until": ["."], "max_tokens": 4, "top_p": 0.5, "num_beams": 1}
    check_generation(suite({"gen_kwargs": asks}))
    with pytest.raises(UserError) as raised:
        check_generation(suite({"gen_kwargs": asks | given}, {}))
    assert str(raised.value).startswith("dataset 'd0', gen_kwargs: ")
    assert words in str(raised.value)
    assert "d1" not in str(raised.value)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def asked(tasks: Path, *names: str, **more: Any) -> Suite:
    given = {"chat_template": True} | more
    return suite(*({"task": name} | given for name in names), folder=tasks)


def test_a_chat_template_that_is_not_there(tasks: Path) -> None:
    with pytest.raises(UserError) as raised:
        check_chat_template(asked(tasks, "plain", "turns", "gsm8k", "tagged"), [])
    lines = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "dataset 'd0'", "dataset 'd2'", "dataset 'd3'",
    ]  # fmt: skip
    assert "set it to false, or put chat_template.jinja" in lines[0]


def test_what_may_do_without_one_is_left_to_the_harness(tasks: Path) -> None:
    check_chat_template(
        asked(tasks, "turns", "included", "some", "any", "alone.txt"), [], str(tasks)
    )
    check_chat_template(asked(tasks, "plain", metadata={"turn_template": "x"}), [])
    check_chat_template(asked(tasks, "plain", chat_template=False), [])


@pytest.mark.parametrize(
    ("name", "text", "there"),
    [
        ("chat_template.jinja", "{{ messages[0].content }}", True),
        ("chat_template.jinja", "x", False),
        ("chat_template.json", '{"chat_template": "{{ messages[0].content }}"}', True),
        ("tekken.json", "{}", True),
        ("tokenizer_config.json", '{"chat_template": "{{ messages[0].content }}"}', True),
        ("tokenizer_config.json", '{"chat_template": null}', False),
        ("tokenizer_config.json", "{}", False),
    ],
)
def test_where_a_checkpoint_has_its_chat_template(
    tasks: Path, name: str, text: str, there: bool
) -> None:
    file = tasks / name
    file.write_text(text)
    if there:
        check_chat_template(asked(tasks, "plain"), [str(file)])
        return
    with pytest.raises(UserError, match="chat template"):
        check_chat_template(asked(tasks, "plain"), [str(file)])
