"""The process that builds requests: what it loads for whom, and how it ends."""

import os
from pathlib import Path

import pytest
from tests.request_caches import Home, requests

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import pulse
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


LOOKS = """import sys


def text(doc):
    return str("torch" in sys.modules)
"""

WANTS = """import torch
import transformers
from transformers.models.bert.modeling_bert import BertModel


def text(doc):
    config = transformers.BertConfig(
        vocab_size=2, hidden_size=2, num_hidden_layers=1, num_attention_heads=1
    )
    return str(all(torch.is_tensor(each) for each in BertModel(config).parameters()))
"""


@pytest.mark.parametrize(("code", "said"), [(LOOKS, "False"), (WANTS, "True")])
def test_models_are_loaded_for_tasks_that_want_one_alone(home: Home, code: str, said: str) -> None:
    home.own(code)
    made = requests(home.get())
    tokenizer = load_tokenizer(home.model)
    texts = {tokenizer.decode(request.tokens).removeprefix("<s>") for request in made}
    assert texts == {said}


FAILS = """import os
from pathlib import Path


def text(doc):
    with (Path(__file__).parent / "pids").open("a") as file:
        print(os.getpid(), file=file)
    raise KeyError("answer")
"""


def test_what_fails_for_another_reason_is_built_once(home: Home) -> None:
    home.own(FAILS)
    with pytest.raises(UserError, match="KeyError"):
        home.get()
    assert len(set((home.tasks / "pids").read_text().split())) == 1


def test_a_chat_template_without_an_end_ends_the_building(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (home.model / "chat_template.jinja").write_text(loop)
    builder = home.builder()
    kept = builder.get(home.dataset).requests  # loads the tokenizer, which takes seconds of its own
    monkeypatch.setattr(pulse, "CPU_SECONDS", 2.0)
    with pytest.raises(UserError, match="the chat template takes more than 2 seconds") as caught:
        builder.get(home.dataset.model_copy(update={"chat_template": True}))
    assert str(home.model) in str(caught.value)
    assert [path for path in home.entries() if path.suffix != ".json"] == [kept]


def test_nothing_is_left_of_the_process_that_builds(home: Home) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    others = set(children.read_text().split())
    builder = home.builder()
    builder.get(home.dataset)
    (builds,) = set(children.read_text().split()) - others
    del builder
    assert builds not in children.read_text().split()
