"""A tokenizer and a chat template are programs: they end, or are ended, in one message."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from tests.tiny import tiny_model

from coordinate_eval.evaluators import pulse
from coordinate_eval.evaluators.harness.prompts.language_models import RequestModel
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer, load_watched
from coordinate_eval.evaluators.pulse import EndlessCall, Pulse, PulseWatch

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Grüße 🙂\n"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tokenizer"
    made.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        if (tiny_model() / name).exists():
            shutil.copy(tiny_model() / name, made)
    return made


@pytest.fixture
def note() -> Iterator[int]:
    with open(os.memfd_create("calls"), "r+b", buffering=0) as file:
        file.truncate(pulse.NOTE_BYTES)
        yield file.fileno()


def in_a_process(note: int, work: Callable[[], object]) -> str:
    """Do work in a watched process. Return its result, or why it was ended."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            said = repr(work())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said[:2000].encode())
        os._exit(0)
    os.close(writer)
    watch = PulseWatch(note)
    try:
        while not select.select([reader], [], [], 0.05)[0]:
            watch.look(process)
        return os.read(reader, 4096).decode()
    except EndlessCall as error:
        return f"ended: {error}"
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reader)


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import here what a tokenizer is loaded with: no process has to, in its short time."""
    load_tokenizer(tiny_model())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(pulse, "CPU_SECONDS", 0.5)
    monkeypatch.setattr(pulse, "MEMORY_BYTES", 1 << 29)


def template(folder: Path, text: str) -> Path:
    (folder / "chat_template.jinja").write_text(text)
    return folder


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    tree = json.loads((folder / "tokenizer.json").read_text())
    change(tree)
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    return folder


def answers(tokenizer: Any) -> Iterator[object]:
    """What a tokenizer says of some texts and a chat: its errors, too."""
    for text in ("", "a", "Grüße aus Köln, 東京 🙂", "x" * 10_000, "\udc80", "\x00\u2028</s>"):
        for options in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            try:
                yield tokenizer.encode(text, **options)
            except Exception as error:
                yield type(error)
    yield from (tokenizer.decode([5, 300, 1]), tokenizer.decode(1))
    for more in (True, False):
        options = {"add_generation_prompt": more, "continue_final_message": not more}
        yield tokenizer.apply_chat_template(CHAT, tokenize=False, **options)


def test_it_answers_as_the_tokenizer_itself(folder: Path, note: int) -> None:
    template(
        folder,
        "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<|turn|>{% endif %}",
    )
    expected = list(answers(load_tokenizer(folder)))
    assert list(answers(load_watched(folder, Pulse(note)))) == expected


def test_it_has_a_chat_template_only_if_the_checkpoint_has_one(folder: Path, note: int) -> None:
    def has_one() -> bool:
        made = load_watched(folder, Pulse(note))
        model = RequestModel(lambda: made, max_length=99, backend="vllm", think_end=None)
        return model.has_chat_template

    assert [has_one(), has_one()] == [False, False]
    template(folder, "{{ messages[0].content }}")
    assert has_one()


def test_a_template_may_refuse_a_chat(folder: Path, note: int) -> None:
    made = load_watched(template(folder, "{{ raise_exception('no system') }}"), Pulse(note))
    with pytest.raises(TemplateError, match="no system"):
        made.apply_chat_template(CHAT, tokenize=False)
    # Prompts with a system message are then made without one: each item fails once.
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}ok"
    made = load_watched(template(folder, text), Pulse(note))
    for _ in range(1500):
        with pytest.raises(TemplateError):
            made.apply_chat_template(CHAT, tokenize=False)
        assert made.apply_chat_template(CHAT[1:], tokenize=False) == "ok"


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
def test_a_template_without_an_end_is_ended(folder: Path, note: int, text: str) -> None:
    template(folder, text)

    def render() -> str:
        made = load_watched(folder, Pulse(note))
        return str(made.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True))

    said = in_a_process(note, render)
    assert re.match(r"ended: the chat template (takes|makes)|\w+Error: ", said)


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
    folder: Path, note: int, change: Callable[[dict[str, Any]], None]
) -> None:
    changed(folder, change)

    def cut() -> int:
        return len(load_watched(folder, Pulse(note)).encode("aaaa" * 100))

    said = in_a_process(note, cut)
    assert re.match(r"\d+$|ended: |UserError: |ValueError: ", said)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}, "UserError"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "missing", "type_id": 0}}],
                    "pair": [],
                    "special_tokens": {},
                }
            },
            "RuntimeError",
        ),
    ],
)
def test_a_panic_of_its_library_is_an_error(
    folder: Path, note: int, broken: dict[str, Any], said: str
) -> None:
    changed(folder, lambda tree: tree.update(broken))
    cut = in_a_process(note, lambda: load_watched(folder, Pulse(note)).encode("a"))
    assert cut.startswith(said)


def test_a_tokenizer_that_expands_texts_is_refused(folder: Path, note: int) -> None:
    changed(folder, replacing("1", "1" * 5000))
    said = in_a_process(note, lambda: load_watched(folder, Pulse(note)).encode("1" * 2000))
    assert re.search("makes|memory|seconds", said)


def test_texts_that_a_task_makes_until_they_are_long_enough_end(folder: Path, note: int) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    tree["normalizer"] = {"type": "Replace", "pattern": {"Regex": r"[\s\S]+"}, "content": "a"}
    (folder / "tokenizer.json").write_text(json.dumps(tree))

    def make() -> None:
        load_watched(folder, Pulse(note))
        own, text = load_tokenizer(folder), "a text "  # as a task loads it
        while len(own(text).input_ids) < 1000:
            text *= 2

    said = in_a_process(note, make)
    assert re.match(r"ended: cutting a text into tokens makes \d of [\d,]+ characters$", said)


def test_a_task_that_tries_what_fails_for_ever_ends(folder: Path, note: int) -> None:
    template(folder, "{{ raise_exception('no') }}")

    def make() -> None:
        made = load_watched(folder, Pulse(note))
        while True:
            with contextlib.suppress(Exception):
                made.apply_chat_template(CHAT, tokenize=False)

    assert in_a_process(note, make) == "ended: the chat template failed 1,000 times in a row"


def test_many_slow_calls_end(folder: Path, note: int) -> None:
    template(folder, "{% for a in range(15) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")

    def make() -> None:
        made = load_watched(folder, Pulse(note))
        while True:
            made.apply_chat_template(CHAT, tokenize=False)

    said = in_a_process(note, make)
    assert re.match(r"ended: the chat template takes \d+ seconds in all$", said)


def test_long_texts_of_few_tokens_may_be_cut_short(folder: Path, note: int) -> None:
    made = load_watched(folder, Pulse(note))
    own = load_tokenizer(folder)
    assert len(own("the cat " * 20_000, truncation=True, max_length=5).input_ids) == 5
    assert len(own(["the cat", "sat"]).input_ids) == 2
    assert made.decode(own(text="the cat").input_ids)


def test_the_pause_between_calls_is_not_counted(note: int) -> None:
    noted, watch = Pulse(note), PulseWatch(note)

    def burn() -> None:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pulse, "CPU_SECONDS", 0.2)
        for _ in range(3):
            noted.call(b"nothing", int)
            burn()
            watch.look(os.getpid())

        def look_twice() -> None:
            watch.look(os.getpid())
            burn()
            watch.look(os.getpid())

        with pytest.raises(EndlessCall, match=r"^burning takes more than 0\.2 seconds$"):
            noted.call(b"burning", look_twice)
