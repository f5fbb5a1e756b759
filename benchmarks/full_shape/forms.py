"""The forms of tasks: a configuration in the harness's own style, and the rows of its data.

A form is a function of the number of choices that returns a configuration, with a function that
makes a row. `tokens` is the length of one example, question and answer together. Which form a
dataset has, and the length of its answers as a share of an example, is in `OF`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.full_shape.text import Text

Row = dict[str, Any]
Config = dict[str, Any]


class Call(str):
    """The name of a function in a module beside the task: `module.function`."""


class Form(NamedTuple):
    """The form of the tasks of a dataset."""

    config: Callable[[int], Config]  # of the number of choices, or of tokens to generate
    row: Callable[[Text, float, int], Row]  # from tokens of an example, and the number of choices
    answer: float
    """Tokens of the answer of an example, as a share of the example."""


_CHOICE = {"output_type": "multiple_choice"}
_ACC = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
_ACC_NORM = [*_ACC, {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]
_LETTERS = "ABCDEFGHIJ"
_WORDS = ("no", "yes", "maybe")


def mean(*names: str) -> list[Config]:
    """Return the configuration of metrics that are averaged over items."""
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


def _letters(choices: int) -> Config:
    lines = "".join(f"{_LETTERS[i]}. {{{{choices[{i}]}}}}\n" for i in range(choices))
    return _CHOICE | {
        "doc_to_text": f"{{{{question.strip()}}}}\n{lines}Answer:",
        "doc_to_choice": list(_LETTERS[:choices]),
        "doc_to_target": "answer",
        "metric_list": _ACC,
    }


def _letters_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(1.0, text.about(tokens) - 3 * choices - 3)
    return {
        "question": text.passage(0.6 * left),
        "choices": [text.passage(0.4 * left / choices) for _ in range(choices)],
        "answer": text.dice.randrange(choices),
    }


def _judged(choices: int) -> Config:
    return _CHOICE | {
        "doc_to_text": "{{passage}}\nQuestion: {{question}}?\nAnswer:",
        "doc_to_choice": list(_WORDS[:choices]),
        "doc_to_target": "label",
        "metric_list": _ACC,
    }


def _judged_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(2.0, text.about(tokens) - 8)
    return {
        "passage": text.passage(0.85 * left),
        "question": text.passage(0.15 * left),
        "label": text.dice.randrange(choices),
    }


def _endings(choices: int) -> Config:
    return _CHOICE | {
        "process_docs": Call("functions.tidy"),
        "doc_to_text": "{{query}}",
        "doc_to_choice": "choices",
        "doc_to_target": "{{label}}",
        "metric_list": _ACC_NORM,
    }


def _endings_row(text: Text, tokens: float, choices: int) -> Row:
    length = text.about(tokens)
    return {
        "query": text.passage(0.65 * length),
        "choices": [text.passage(0.35 * length) for _ in range(choices)],
        "label": text.dice.randrange(choices),
    }


def _listed(choices: int) -> Config:
    return _CHOICE | {
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "{{choices.text}}",
        "doc_to_target": "{{choices.label.index(answerKey)}}",
        "metric_list": _ACC_NORM,
    }


def _listed_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(2.0, text.about(tokens) - 6)
    labels = list(_LETTERS[:choices])
    texts = [text.passage(0.2 * left) for _ in labels]
    return {
        "question": text.passage(0.8 * left),
        "choices": {"text": texts, "label": labels},
        "answerKey": text.dice.choice(labels),
    }


def _sentences(choices: int) -> Config:
    joined = (f"premise + ', right? {_WORDS[i].title()}, ' + hypothesis" for i in range(choices))
    return _CHOICE | {
        "doc_to_text": "",
        "doc_to_choice": "{{[" + ", ".join(joined) + "]}}",
        "doc_to_target": "label",
        "metric_list": _ACC,
    }


def _sentences_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(2.0, text.about(tokens) - 5)
    return {
        "premise": text.passage(0.6 * left),
        "hypothesis": text.passage(0.4 * left),
        "label": text.dice.randrange(choices),
    }


def _pair(choices: int) -> Config:
    return _CHOICE | {
        "doc_to_text": "",
        "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
        "doc_to_target": 0,
        "metric_list": _ACC,
    }


def _pair_row(text: Text, tokens: float, choices: int) -> Row:
    length = text.about(tokens)
    return {"sentence_good": text.passage(length), "sentence_bad": text.passage(length)}


def _article(choices: int) -> Config:
    return _CHOICE | {
        "doc_to_text": Call("functions.article_text"),
        "doc_to_choice": Call("functions.article_choices"),
        "doc_to_target": Call("functions.article_target"),
        "metric_list": _ACC,
    }


def _article_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(3.0, text.about(tokens) - 6)
    return {
        "article": text.passage(0.75 * left),
        "question": text.passage(0.15 * left),
        "options": [text.passage(0.1 * left) for _ in range(choices)],
        "label": text.dice.randrange(choices),
    }


def _blank(choices: int) -> Config:
    return _CHOICE | {
        "doc_to_text": Call("functions.blank_text"),
        "doc_to_choice": Call("functions.blank_choices"),
        "doc_to_target": Call("functions.blank_target"),
        "metric_list": _ACC,
    }


def _blank_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(3.0, text.about(tokens) - 1)
    before, after = text.passage(0.5 * left), text.passage(0.5 * left)
    options = [text.passage(1) for _ in range(choices)]
    label = text.dice.randrange(choices)
    return {"sentence": f"{before} _ {after}", "options": options, "label": label}


def _correct(choices: int) -> Config:
    options = (f"'''{{{{answer}}}}\\nIs the answer correct? {w}'''" for w in ("yes", "no"))
    return _CHOICE | {
        "doc_to_text": "{{paragraph}}\nQuestion: {{question}}\nAnswer:",
        "doc_to_choice": "[" + ", ".join(options) + "]",
        "doc_to_target": "label",
        "metric_list": _ACC,
    }


def _correct_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(3.0, text.about(tokens) - 13)
    return {
        "paragraph": text.passage(0.85 * left),
        "question": text.passage(0.1 * left),
        "answer": text.passage(0.05 * left),
        "label": text.dice.randrange(choices),
    }


def _true(choices: int) -> Config:
    return _CHOICE | {
        "doc_to_text": "{% set shown = 'Q: What is it?\\nA: It is so.' %}{{shown + '\\n\\nQ: ' + "
        "question + '\\nA:'}}",
        "doc_to_choice": "{{mc2_targets.choices}}",
        "doc_to_target": 0,
        "process_results": Call("functions.true_results"),
        "metric_list": _ACC,
    }


def _true_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(2.0, text.about(tokens) - 20)
    right = text.dice.randrange(1, choices)
    targets = {
        "choices": [text.passage(0.1 * left) for _ in range(choices)],
        "labels": [int(place < right) for place in range(choices)],
    }
    return {"question": text.passage(0.9 * left), "mc2_targets": targets}


def _entities(choices: int) -> Config:
    return _CHOICE | {
        "process_docs": Call("functions.entities_docs"),
        "doc_to_text": Call("functions.entities_text"),
        "doc_to_choice": Call("functions.entities_choices"),
        "doc_to_target": Call("functions.entities_target"),
        "process_results": Call("functions.entities_results"),
        "metric_list": mean("f1", "em"),
    }


def _entities_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(4.0, text.about(tokens) - 8)
    entities = [f"{text.passage(1)} {number}" for number in range(choices)]
    highlights = [text.passage(0.1 * left) for _ in range(2)]
    return {
        "passage": "\n@highlight\n".join([text.passage(0.7 * left), *highlights]),
        "query": f"{text.passage(0.1 * left)} @placeholder",
        "entities": entities,
        "answers": [text.dice.choice(entities)],
    }


def _last_word(choices: int) -> Config:
    perplexity = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
    return {
        "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
        "metric_list": [perplexity, *_ACC],
    }


def _last_word_row(text: Text, tokens: float, choices: int) -> Row:
    return {"text": f"{text.passage(text.about(tokens))} {text.passage(1)}"}


SCORED: Mapping[str, Form] = {
    "letters": Form(_letters, _letters_row, 0),
    "judged": Form(_judged, _judged_row, 0),
    "endings": Form(_endings, _endings_row, 0),
    "listed": Form(_listed, _listed_row, 0),
    "sentences": Form(_sentences, _sentences_row, 0),
    "pair": Form(_pair, _pair_row, 0),
    "article": Form(_article, _article_row, 0),
    "blank": Form(_blank, _blank_row, 0),
    "correct": Form(_correct, _correct_row, 0),
    "true": Form(_true, _true_row, 0),
    "entities": Form(_entities, _entities_row, 0),
    "last word": Form(_last_word, _last_word_row, 0),
}
"""Forms that ask for log-likelihoods. The answer is part of each request."""
