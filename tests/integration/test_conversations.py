"""Documents with several turns and their own sampling: what is asked, and what scoring sees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from tests.own_tasks import write_task
from tests.tiny import tiny_model

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    Request,
    Response,
    Turn,
    prompt_lengths,
)

LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
THINKS = (  # shows of an earlier answer what comes after its thinking
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
FORGETS = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}\nAnswer:{% endif %}"
REPEATS = "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}"
SHOUTS = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
ALTERNATES = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ raise_exception('no assistant here') }}{% endif %}{{ m['content'] }}{% endfor %}"
)
BETWEEN = {
    "Llama 3": (
        LLAMA_3,
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd now?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "ChatML": (
        CHATML,
        "<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Llama 2": (LLAMA_2, " </s><s>[INST] And now? [/INST]"),
    "thinks": (
        THINKS,
        "<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
}
PLAIN = "\n\nUser: {{question}}\n\nAssistant:"
ROWS: list[dict[str, Any]] = [
    {"q": "Who?", "then": ["And now?"], "way": {"temperature": 0.75, "do_sample": True}},
    {"q": "What?", "then": ["When?", "Where?"], "way": {"temperature": 0.0, "do_sample": None}},
    {"q": "Why?", "then": [], "way": {"until": ["."]}},
]
LISTS = '''"""A metric that looks at all turns."""


def turns(doc, results):
    (answers,) = results
    return {"acc": float("|".join(answers) == doc["said"])}
'''


class Place:
    """A folder with one task and a tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model())
        self.write(ROWS)

    def write(self, rows: list[dict[str, Any]], **config: Any) -> None:
        (self.folder / "metric.py").write_text(LISTS)
        rows = [{"said": "yes", **row} for row in rows]
        written = {
            "doc_to_target": "said",
            "process_results": "!metric.turns",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 7, "do_sample": False},
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"follow_ups": "then", "sampling": "way", "turn_template": PLAIN},
        }
        write_task(self.folder, rows, **written | config)

    def evaluator(self, template: str | None = None) -> HarnessEvaluator:
        self.tokenizer.chat_template = template
        self.tokenizer.save_pretrained(self.folder / "tokenizer")
        return HarnessEvaluator(
            tokenizer=self.folder / "tokenizer",
            max_length=300,
            include_path=[str(self.folder)],
        )

    def build(
        self, template: str | None = None, **options: Any
    ) -> tuple[list[Request], DatasetRequests]:
        requests: list[Request] = []
        known = {"name": "own", "chat_template": template is not None, **options}
        dataset = Dataset.model_validate(known, extra="forbid")
        index = self.evaluator(template).build(dataset, requests.append)
        return requests, index

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def answered(request: Request, *texts: str) -> Response:
    first, *others = texts
    turns = [Turn(text=text, tokens=1, finish="stop") for text in others]
    return respond(request, text=first, tokens=1, finish="stop", turns=turns)


@pytest.mark.parametrize("name", BETWEEN)
def test_a_turn_goes_on_as_the_chat_template_does(place: Place, name: str) -> None:
    template, between = BETWEEN[name]
    requests, index = place.build(template)
    assert [place.text(each) for each in requests[0].follow_ups] == [between]
    assert [len(request.follow_ups) for request in requests] == [1, 2, 0]
    assert place.text(requests[1].follow_ups[1]) == between.replace("And now?", "Where?")
    bos = place.tokenizer.bos_token_id
    assert sum(each.count(bos) for each in requests[0].follow_ups) == between.count("<s>")
    assert not index.plain_chat


@pytest.mark.parametrize(
    ("name", "answer"), [("Llama 3", "Me."), ("ChatML", "Me.\n"), ("Llama 2", " Me.")]
)
def test_prompt_answer_and_follow_up_are_the_chat_as_the_template_writes_it(
    place: Place, name: str, answer: str
) -> None:
    request, *_ = place.build(BETWEEN[name][0])[0]
    chat = [("user", "Who?"), ("assistant", answer.lstrip(" ")), ("user", "And now?")]
    messages = [{"role": role, "content": content} for role, content in chat]
    whole = place.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert place.text(request.tokens) + answer + place.text(request.follow_ups[0]) == whole


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (FORGETS, "shows an earlier answer 0 times"),
        (REPEATS, "shows an earlier answer 2 times"),
        (SHOUTS, "shows an earlier answer 0 times"),
        (ALTERNATES, "no assistant here"),
    ],
)
def test_a_chat_template_without_earlier_answers_is_refused(
    place: Place, template: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        place.build(template)


def test_without_a_chat_template_the_task_has_its_own(place: Place) -> None:
    requests, index = place.build()
    assert [place.text(each) for each in requests[1].follow_ups] == [
        "\n\nUser: When?\n\nAssistant:",
        "\n\nUser: Where?\n\nAssistant:",
    ]
    assert place.text(requests[1].tokens) == "What?"
    assert not index.plain_chat
    place.write(ROWS, metadata={"follow_ups": "then"})
    with pytest.raises(UserError, match="set chat_template, or turn_template in its metadata"):
        place.build()


def test_a_checkpoint_without_a_chat_template_chats_in_plain_text(place: Place) -> None:
    requests: list[Request] = []
    dataset = Dataset(name="own", chat_template=True, system_instruction="Be brief.")
    index = place.evaluator(None).build(dataset, requests.append)
    assert place.text(requests[0].tokens) == "Be brief.\n\nUser: Who?\n\nAssistant:"
    assert place.text(requests[0].follow_ups[0]) == "\n\nUser: And now?\n\nAssistant:"
    assert index.plain_chat
    responses = [answered(request, *["yes"] * request.turns) for request in requests]
    scorer = place.evaluator(None)
    assert scorer.finish(dataset, responses, {}).plain_chat
    scorer.load(dataset, index)
    assert scorer.finish(dataset, responses, {}).plain_chat


def test_a_suite_may_name_the_turns_of_a_task(place: Place) -> None:
    wanted, _ = place.build()
    metadata = {"follow_ups": "then", "sampling": "way", "turn_template": PLAIN}
    place.write(ROWS, metadata={"version": 1.0})
    assert [request.follow_ups for request in place.build()[0]] == [[], [], []]
    found, _ = place.build(metadata=metadata)
    assert found == wanted


def test_a_document_has_its_own_generation_arguments(place: Place) -> None:
    requests, _ = place.build()
    assert [request.sampling for request in requests] == [{"temperature": 0.75}, {}, {}]
    assert [request.stop[0] for request in requests] == ["\n", "\n", "."]
    assert all(request.max_tokens == 7 for request in requests)


@pytest.mark.parametrize(
    ("way", "sampling", "limit"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}, 7),
        ({"temperature": 0.5, "do_sample": False}, {}, 7),
        ({"temperature": 0.0, "top_p": 0.5}, {}, 7),
        ({"max_tokens": 3}, {}, 3),
        ({"max_gen_toks": 3}, {}, 3),
        ({}, {}, 7),
    ],
)
def test_what_a_document_says_of_its_generation_holds(
    place: Place, way: dict[str, Any], sampling: dict[str, float], limit: int
) -> None:
    place.write([{"q": "Who?", "then": [], "way": {"seed": None, **way}}])
    ((request,), _) = place.build()
    assert (request.sampling, request.max_tokens) == (sampling, limit)


@pytest.mark.parametrize("field", ["then", "way"])
def test_another_question_or_sampling_is_another_request(place: Place, field: str) -> None:
    (before, *same), index = place.build()
    rows = [dict(row) for row in ROWS]
    rows[0][field] = {"then": ["And then?"], "way": {"temperature": 0.5, "do_sample": True}}[field]
    place.write(rows)
    (after, *others), changed = place.build()
    assert before.prompt_hash != after.prompt_hash
    assert index.item_digests[0] != changed.item_digests[0]
    assert [r.prompt_hash for r in same] == [r.prompt_hash for r in others]


def test_another_template_of_turns_has_prompts_made_again(place: Place) -> None:
    _, index = place.build()
    metadata = {"follow_ups": "then", "sampling": "way", "turn_template": "\n{{question}}\n"}
    place.write(ROWS, metadata=metadata)
    assert place.build()[1].made_from != index.made_from != ""


@pytest.mark.parametrize(
    ("metadata", "rows", "reason"),
    [
        ({"follow_ups": "no such"}, ROWS, "have no field 'no such'"),
        ({"follow_ups": "q", "turn_template": PLAIN}, ROWS, "is no list of texts: Who"),
        ({"sampling": "q"}, ROWS, "is no mapping: 'Who"),
        ({"follow_ups": ["then"]}, ROWS, "is not text"),
        ({"follow_ups": "then", "turn_template": "{{ text }}"}, ROWS, "'text' is undefined"),
    ],
)
def test_what_cannot_be_a_conversation_is_refused(
    place: Place, metadata: dict[str, Any], rows: list[dict[str, Any]], reason: str
) -> None:
    place.write(rows, metadata=metadata)
    with pytest.raises(UserError, match=reason):
        place.build()


def test_a_turn_counts_as_a_request(place: Place) -> None:
    requests, index = place.build()
    assert (index.items, index.requests, index.generate_requests) == (3, 6, 6)
    assert index.max_output_tokens == 6 * 7
    assert index.longest_output_tokens == 3 * 7
    assert index.prompt_tokens == sum(sum(prompt_lengths(request)) for request in requests)
    first, second, third = prompt_lengths(requests[1])
    assert [second - first, third - second] == list(map(len, requests[1].follow_ups))


Scored = Callable[[list[Response]], float]


@pytest.fixture(params=["with prompts", "without prompts"])
def scored(place: Place, request: pytest.FixtureRequest) -> Scored:
    """Score responses with the prompts made again, or without any."""

    def score(responses: list[Response]) -> float:
        dataset = Dataset(name="own")
        evaluator = place.evaluator()
        if request.param == "without prompts":
            evaluator.load(dataset, place.build()[1])
        found = evaluator.finish(dataset, responses, {})
        return float(found.results["own"]["acc,none"])

    return score


def test_scoring_sees_the_texts_of_all_turns(place: Place, scored: Scored) -> None:
    said = ["yes|no", "a|b|c", "one"]
    place.write([{**row, "said": words} for row, words in zip(ROWS, said, strict=True)])
    requests, _ = place.build()
    responses = [
        answered(requests[0], "yes\nand", "no\n"),
        answered(requests[1], "a", "b\nb", "wrong"),
        answered(requests[2], "one.\n"),  # it has its own stop string
    ]
    assert scored(responses) == pytest.approx(2 / 3)


def test_each_sample_of_a_document_is_a_conversation(place: Place) -> None:
    place.write([{**row, "said": "|".join(["yes"] * (1 + len(row["then"])))} for row in ROWS])
    requests, index = place.build(repeats=2)
    assert (len(requests), index.requests) == (6, 12)
    responses = [
        answered(request, *["no" if request.repeat else "yes"] * request.turns)
        for request in requests
    ]
    results = place.evaluator().finish(Dataset(name="own", repeats=2), responses, {})
    assert results.results["own"]["acc,none"] == 1  # the harness scores the first sample


def test_half_a_conversation_is_no_response(place: Place, scored: Scored) -> None:
    requests, _ = place.build()
    with pytest.raises(RecordError, match="lacks turns"):
        scored([answered(request, "yes") for request in requests])
