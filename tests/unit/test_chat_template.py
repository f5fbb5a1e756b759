"""Chat templates of checkpoints: where they are, and whether they can be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.coordinator.inputs.checkpoints import chat_template, clean_files
from coordinate_eval.evaluators import chat_rendering

GOOD = "{% for m in messages %}{{ bos_token + m.content }}{% endfor %}"


def side_files(folder: Path, **contents: Any) -> list[str]:
    """Files whose names have a point for each `__`: text, or a value as JSON."""
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return [str(path) for path in folder.iterdir() if path.is_file()]


def why_not(files: list[str]) -> str:
    return chat_template.why_unusable(chat_template.find(files), files)


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": GOOD} for name in names]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"chat_template": GOOD}, ""),
        ({"chat_template": named("default", "tool_use")}, ""),
        ({"chat_template": {"default": GOOD}}, ""),
        ({}, "has no chat template"),
        ({"chat_template": None}, "no chat template (tokenizer_config.json has null"),
        ({"chat_template": ""}, "no chat template (tokenizer_config.json has an empty one)"),
        ({"chat_template": " \n"}, "has an empty one"),
        ({"chat_template": 5}, "something else than text"),
        ({"chat_template": []}, "no chat template"),
        (
            {"chat_template": named("rag", "tool_use")},
            "named rag, tool_use, and none named default",
        ),
        ({"chat_template": [{"name": "default", "template": None}]}, "none named default"),
        ({"chat_template": [None, 5, "x"]}, "no chat template"),
    ],
)
def test_a_key_is_no_template(tmp_path: Path, config: Any, why: str) -> None:
    files = side_files(tmp_path, tokenizer_config__json=config)
    assert why in why_not(files)
    assert bool(why_not(files)) == bool(why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GOOD, ""),
        ("{%- for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
         "{% endfor %}", ""),
        ("{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}", ""),
        ("{{ strftime_now('%Y') }}{{ messages[0]['content'] | trim }}", ""),
        ("{{ messages[0].content | upper }}", ""),
        ("{{ messages[0].content", "does not compile: line 1"),
        ("{% nonsense %}", "does not compile: line 1: Encountered unknown tag"),
        ("{{ raise_exception('Only tools') }}", "refuses a user message: Only tools"),
        ("{{ messages[7].content.x }}", "refuses a user message"),
        ("{{ 1 // 0 }}", "fails on a user message: "),
        ("{% if tools %}{{ messages }}{% endif %}\n", "renders nothing"),
        ("Hello!", "leaves the question out"),
        # of a model for images, whose contents are lists of parts
        (
            "{% for m in messages %}-{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
            "{% endif %}{% endfor %}{% endfor %}",
            "leaves the question out",
        ),
        ("{{ ''.__class__.__mro__ }}", "refuses a user message"),
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'x' * 10**11 }}", "more than 1 GiB of memory"),
    ],
)  # fmt: skip
def test_a_template_must_render_a_question(tmp_path: Path, text: str, why: str) -> None:
    files = side_files(tmp_path, chat_template__jinja=text)
    assert why in why_not(files)
    assert bool(why_not(files)) == bool(why)


def test_a_template_without_an_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_rendering, "CPU_SECONDS", 1)
    loop = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    files = side_files(tmp_path, chat_template__jinja=loop)
    assert "does not come to an end within 1 seconds" in why_not(files)


def test_the_file_for_it_counts_before_the_config(tmp_path: Path) -> None:
    files = side_files(
        tmp_path, chat_template__jinja=GOOD, tokenizer_config__json={"chat_template": None}
    )
    assert why_not(files) == ""
    (tmp_path / "chat_template.jinja").write_text("")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": GOOD}))
    assert "chat_template.jinja has an empty one" in why_not(files)


def test_tokens_of_the_checkpoint_are_there_for_it(tmp_path: Path) -> None:
    text = "{{ bos_token + image_token + messages[0].content }}"
    tokens = {"bos_token": {"content": "<s>"}, "image_token": "<i>"}
    files = side_files(tmp_path, chat_template__jinja=text, tokenizer_config__json=tokens)
    assert why_not(files) == ""


def test_a_template_for_processors_is_copied_to_where_tokenizers_read_it(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    files = side_files(
        source, chat_template__json={"chat_template": GOOD}, tokenizer_config__json={}
    )
    assert why_not(files) == ""
    clean_files.copy(files, target)
    assert (target / "chat_template.jinja").read_text() == GOOD


def test_templates_for_other_purposes_are_none(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text(GOOD)
    files = side_files(tmp_path, tokenizer_config__json={})
    assert "has no chat template (those in additional_chat_templates" in why_not(files)


@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.model.v3"])
def test_a_tokenizer_may_have_it_in_code(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    assert why_not(side_files(tmp_path, tokenizer_config__json={})) == ""
