"""A tokenizer and a chat template are programs: they end, or are ended, in one message."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from tests.tiny import tiny_model

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness import tokenizer_process
from coordinate_eval.evaluators.harness.tokenizer import load_tokenizer
from coordinate_eval.evaluators.harness.tokenizer_process import TokenizerProcess

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Grüße 🙂\n"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tokenizer"
    made.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        if (tiny_model() / name).exists():
            shutil.copy(tiny_model() / name, made)
    return made


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(tokenizer_process, "CPU_SECONDS", 3.0)
    monkeypatch.setattr(tokenizer_process, "MEMORY_BYTES", 1 << 30)


def template(folder: Path, text: str) -> Path:
    (folder / "chat_template.jinja").write_text(text)
    return folder


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    tree = json.loads((folder / "tokenizer.json").read_text())
    change(tree)
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    return folder


def test_it_answers_as_the_tokenizer_itself(folder: Path) -> None:
    template(
        folder,
        "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<|turn|>{% endif %}",
    )
    here, there = load_tokenizer(folder), TokenizerProcess(folder)
    for name in ("bos_token", "bos_token_id", "eos_token", "eos_token_id", "name_or_path"):
        assert getattr(there, name) == getattr(here, name)
    for text in ("", "a", "Grüße aus Köln, 東京 🙂", "x" * 10_000, "\udc80", "\x00\u2028</s>"):
        for options in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            try:
                expected: object = here.encode(text, **options)
            except Exception:
                with pytest.raises(ValueError, match=r"\w"):
                    there.encode(text, **options)
                continue
            assert there.encode(text, **options) == expected
    assert there.decode([5, 300, 1]) == here.decode([5, 300, 1])
    assert there.decode(1) == here.decode(1)
    for more in (True, False):
        options = {"add_generation_prompt": more, "continue_final_message": not more}
        assert there.apply_chat_template(CHAT, **options) == here.apply_chat_template(
            CHAT, tokenize=False, **options
        )


def test_a_template_may_refuse_a_chat(folder: Path) -> None:
    made = TokenizerProcess(template(folder, "{{ raise_exception('no system') }}"))
    with pytest.raises(TemplateError, match="no system"):
        made.apply_chat_template(CHAT)
    # and goes on
    assert made.encode("a")
    with pytest.raises(ValueError, match="chat_template"):
        TokenizerProcess(without_template(folder)).apply_chat_template(CHAT)


def without_template(folder: Path) -> Path:
    (folder / "chat_template.jinja").unlink()
    return folder


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLE = (
    "{% set n = namespace(x='aaaaaaaaaaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
)


@pytest.mark.parametrize(
    "text",
    [
        LOOP,
        DOUBLE,
        "{{ 10 ** (10 ** 8) % 7 }}",
        "{{ messages[0].content|length ** (10 ** 9) }}",
        "{{ 'a' * 10 ** 11 }}",
        "{{ '%099999999999d' % 1 }}",
        "{{ 'x'|center(10 ** 11) }}",
        "{{ range(99999)|map('string')|join('x' * 100000) }}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% if messages|length > 1 %}" + LOOP + "{% endif %}",
        "{{ 'x' * (20 * 2 ** 20) }}",
    ],
    ids=range(11),
)
def test_a_template_without_an_end_is_ended(folder: Path, text: str) -> None:
    made = TokenizerProcess(template(folder, text))
    with pytest.raises((UserError, TemplateError, ValueError)) as caught:
        made.apply_chat_template(CHAT, add_generation_prompt=True)
    assert len(str(caught.value)) < 1000
    if isinstance(caught.value, UserError):
        assert "chat template" in str(caught.value)
        assert str(folder) in str(caught.value)
        with pytest.raises(UserError, match="chat template"):
            made.encode("a")


def splitting(pattern: str) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree.update(
        pre_tokenizer={
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
        }
    )  # fmt: skip


def replacing(text: str, content: str) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree.update(
        normalizer={"type": "Replace", "pattern": {"String": text}, "content": content}
    )


def nested(tree: dict[str, Any]) -> None:
    inner: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(200):
        inner = {"type": "Sequence", "normalizers": [inner]}
    tree["normalizer"] = inner


@pytest.mark.parametrize(
    "change",
    [
        splitting(r"(a+)+$"),
        splitting(r"(a|aa)+$"),
        splitting(r"((a*)*)*b"),
        splitting(r"(.*)*(.*)*(.*)*x"),
        splitting("(" * 5000 + ")" * 5000),
        splitting("(?<"),
        replacing("a", "a" * 10**7),
        nested,
        lambda tree: tree.update(model={}),
        lambda tree: tree["model"].update(vocab={"a": -1}),
        lambda tree: tree["model"].update(vocab={"a": 2**40}),
        lambda tree: tree["model"].update(merges=[["a", "b"]]),
    ],
    ids=range(12),
)
def test_a_tokenizer_without_an_end_is_ended(
    folder: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    try:
        made = TokenizerProcess(changed(folder, change))
    except UserError as error:
        assert str(folder) in str(error)
        assert len(str(error)) < 2000
    else:  # then it works as well as it can, within the limits
        with_limits(made)


def with_limits(made: TokenizerProcess) -> None:
    try:
        assert isinstance(made.encode("aaaa" * 100), list)
    except (UserError, ValueError) as error:
        assert len(str(error)) < 1000


def test_a_tokenizer_that_expands_texts_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"makes|memory|seconds"):
        TokenizerProcess(changed(folder, replacing("1", "1" * 5000))).encode("1" * 2000)


def test_nothing_is_left_of_it(folder: Path) -> None:
    made = TokenizerProcess(folder)
    process = made._process
    assert Path(f"/proc/{process}").exists()
    del made
    assert not Path(f"/proc/{process}").exists()


def test_it_ends_with_its_owner(folder: Path) -> None:
    reader, writer = os.pipe()
    owner = os.fork()
    if not owner:
        os.close(reader)
        os.write(writer, str(TokenizerProcess(folder)._process).encode())
        os._exit(0)
    os.close(writer)
    process = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(owner, 0)
    end = time.monotonic() + 60
    command = Path(f"/proc/{process}/cmdline")
    while command.exists() and command.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)
