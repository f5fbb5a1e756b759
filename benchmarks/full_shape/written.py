"""The forms of tasks whose answers are generated. See `forms`."""

from collections.abc import Mapping

from benchmarks.full_shape.forms import Call, Config, Form, Row, mean
from benchmarks.full_shape.text import Text

_FIRST = {"function": "take_first"}
_EXACT = {
    "metric": "exact_match",
    "aggregation": "mean",
    "higher_is_better": True,
    "ignore_case": True,
    "ignore_punctuation": True,
}


def _generate(tokens: int, until: list[str]) -> Config:
    return {
        "output_type": "generate_until",
        "generation_kwargs": {
            "until": until,
            "max_gen_toks": tokens,
            "do_sample": False,
            "temperature": 0.0,
        },
    }


def _short(tokens: int) -> Config:
    return _generate(tokens, ["\n", ".", ","]) | {
        "doc_to_text": "Question: {{question}}?\nAnswer:",
        "doc_to_target": "{{answer.aliases}}",
        "filter_list": [
            {"name": "remove_whitespace", "filter": [{"function": "remove_whitespace"}, _FIRST]}
        ],
        "metric_list": [_EXACT],
    }


def _short_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(2.0, text.about(tokens) - 6)
    aliases = [text.passage(0.15 * left) for _ in range(1 + text.dice.randrange(12))]
    return {"question": text.passage(0.85 * left), "answer": {"aliases": aliases}}


def _worked(tokens: int) -> Config:
    strict = {"function": "regex", "regex_pattern": "The answer is (\\-?[0-9\\.\\,]+)."}
    number = {
        "function": "regex",
        "group_select": -1,
        "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)",
    }
    ignored = {
        "ignore_punctuation": False,
        "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
    }
    return _generate(tokens, ["Q:", "</s>", "<|im_end|>"]) | {
        "doc_to_text": "Q: {{question}}\n\n  A:",
        "doc_to_target": "{{answer.split('####')[-1].strip() if answer is defined else target}}",
        "filter_list": [
            {"name": "strict-match", "filter": [strict, _FIRST]},
            {"name": "flexible-extract", "filter": [number, _FIRST]},
        ],
        "metric_list": [_EXACT | ignored],
    }


def _worked_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(3.0, text.about(tokens) - 12)
    number = text.dice.randrange(1000)
    return {
        "question": text.passage(0.5 * left),
        "target": f"{text.passage(0.5 * left)} The answer is {number}.",
    }


def _maths(tokens: int) -> Config:
    return _generate(tokens, ["Problem:"]) | {
        "process_docs": Call("functions.maths_docs"),
        "doc_to_text": Call("functions.maths_text"),
        "doc_to_target": "{{answer if few_shot is undefined else solution}}",
        "process_results": Call("functions.maths_results"),
        "metric_list": mean("exact_match"),
    }


def _maths_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(3.0, text.about(tokens) - 24)
    number = text.dice.randrange(1000)
    shown = f"\\boxed{{{number}}}.\nFinal Answer: The final answer is ${number}$."
    return {
        "problem": text.passage(0.5 * left),
        "solution": f"{text.passage(0.5 * left)} {shown}",
        "answer": str(number),
    }


def _spans(tokens: int) -> Config:
    return _generate(tokens, ["\n", "."]) | {
        "doc_to_text": "{{passage}} {{question}}",
        "doc_to_target": "{{ answers|join(',')}}",
        "process_results": Call("functions.span_results"),
        "metric_list": mean("em", "f1"),
    }


def _spans_row(text: Text, tokens: float, choices: int) -> Row:
    length = text.about(tokens)
    return {
        "passage": text.passage(0.92 * length),
        "question": text.passage(min(30.0, 0.08 * length)),
        "answers": [text.passage(3) for _ in range(1 + text.dice.randrange(4))],
    }


def _summary(tokens: int) -> Config:
    return _generate(tokens, []) | {
        "doc_to_text": "You are given a text. Sum it up.\n\nText:\n{{context}}\n\nAnswer:",
        "doc_to_target": "{{answers}}",
        "process_results": Call("functions.summary_results"),
        "metric_list": mean("rouge_l"),
    }


def _summary_row(text: Text, tokens: float, choices: int) -> Row:
    length = text.about(tokens)
    answers = [text.passage(min(400.0, 0.3 * length)) for _ in range(2)]
    return {"context": text.passage(length - 18), "answers": answers}


def _translated(tokens: int) -> Config:
    return _generate(tokens, ["\n"]) | {
        "doc_to_text": "English: {{sentence}}\nFrench:",
        "doc_to_target": "{{translation}}",
        "metric_list": [
            {"metric": name, "aggregation": name, "higher_is_better": True}
            for name in ("bleu", "chrf")
        ],
    }


def _translated_row(text: Text, tokens: float, choices: int) -> Row:
    left = max(2.0, text.about(tokens) - 6)
    return {"sentence": text.passage(0.5 * left), "translation": text.passage(0.5 * left)}


def _found(tokens: int) -> Config:
    return _generate(tokens, []) | {
        "doc_to_text": "{{input}}",
        "doc_to_target": "{{outputs[0]}}",
        "process_results": Call("functions.found_results"),
        "metric_list": mean("found"),
    }


def _found_row(text: Text, tokens: float, choices: int) -> Row:
    return {"input": text.passage(tokens), "outputs": [str(text.dice.randrange(10**7))]}


def _instructed(tokens: int) -> Config:
    by_prompt = mean("prompt_level_strict_acc", "prompt_level_loose_acc")
    by_line = [
        {"metric": name, "aggregation": Call("functions.flat_mean"), "higher_is_better": True}
        for name in ("inst_level_strict_acc", "inst_level_loose_acc")
    ]
    return _generate(tokens, []) | {
        "doc_to_text": "prompt",
        "doc_to_target": 0,
        "process_results": Call("functions.instructed_results"),
        "metric_list": [*by_prompt, *by_line],
    }


def _instructed_row(text: Text, tokens: float, choices: int) -> Row:
    wanted = [text.passage(1).lower() for _ in range(1 + text.dice.randrange(3))]
    return {"prompt": text.passage(text.about(tokens)), "wanted": wanted}


def _program(tokens: int) -> Config:
    return _generate(tokens, ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]) | {
        "unsafe_code": True,
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{test}}",
        "filter_list": [
            {
                "name": "create_test",
                "filter": [{"function": "custom", "filter_fn": Call("programs.complete")}],
            }
        ],
        "metric_list": [
            {
                "metric": Call("programs.pass_at_k"),
                "aggregation": "mean",
                "higher_is_better": True,
                "k": [1],
            }
        ],
    }


def _program_row(text: Text, tokens: float, choices: int) -> Row:
    name, number = f"f{text.dice.randrange(10**6)}", text.dice.randrange(100)
    left = max(2.0, text.about(tokens) - 30)
    return {
        "prompt": f'def {name}(x):\n    """{text.passage(left)}"""\n',
        "test": f"assert {name}(1) == {number}",
    }


PROGRAM = Form(_program, _program_row, 0.2)
"""Programs, which are run. A row also has the seconds that a program sleeps instead, or 0."""

WRITTEN: Mapping[str, Form] = {
    "short": Form(_short, _short_row, 0.15),
    "worked": Form(_worked, _worked_row, 0.5),
    "maths": Form(_maths, _maths_row, 0.5),
    "spans": Form(_spans, _spans_row, 0.02),
    "summary": Form(_summary, _summary_row, 0),
    "translated": Form(_translated, _translated_row, 0.5),
    "found": Form(_found, _found_row, 0),
    "instructed": Form(_instructed, _instructed_row, 0),
    "program": PROGRAM,
}
"""Forms that ask for texts."""
