"""Templates of prompts are compiled once, and render what the harness renders."""

import pytest

pytest.importorskip("lm_eval")

from jinja2 import Environment, UndefinedError
from lm_eval import utils

from coordinate_eval.evaluators.harness.session import compiled_once

TEMPLATE = "{{text | regex_replace('a', 'b')}} {{n + 1}}\n"


def test_nothing_is_left_on_the_harness() -> None:
    with compiled_once(), compiled_once():
        assert "from_string" in vars(utils.env)
    assert "from_string" not in vars(utils.env)


def test_the_same_text_from_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [{"text": f"a banana {n}", "n": n} for n in range(5)]
    expected = [utils.apply_template(TEMPLATE, document) for document in documents]
    compiled: list[str] = []
    real = Environment.from_string

    def from_string(self: Environment, source: str) -> object:
        compiled.append(source)
        return real(self, source)

    monkeypatch.setattr(Environment, "from_string", from_string)
    with compiled_once():
        found = [utils.apply_template(TEMPLATE, document) for document in documents]
        with pytest.raises(UndefinedError):
            utils.apply_template("{{text}}", {"n": 1})
    assert found == expected
    assert compiled == [TEMPLATE, "{{text}}"]
    utils.apply_template(TEMPLATE, documents[0])
    assert compiled[2:] == [TEMPLATE]
