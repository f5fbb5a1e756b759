"""MT-Bench and Vicuna-Bench (Zheng et al., 2023): questions, references and judge prompts."""

from collections.abc import Mapping
from typing import Any

import datasets

from coordinate_eval.evaluators.judged.published import chosen, read_lines

_FASTCHAT = (
    "https://raw.githubusercontent.com/lm-sys/FastChat/0e6d3e4beaab66f4d3f93db72541a4abab8af28d/"
    "fastchat/llm_judge/data"
)
_PROMPTS = (
    f"{_FASTCHAT}/judge_prompts.jsonl"
    "#sha256=fd283293406d024f44c174b094ef48031d0687a4682fd3a56b29b138f80281b6"
)
_MT_BENCH = {
    "questions": f"{_FASTCHAT}/mt_bench/question.jsonl"
    "#sha256=119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    "references": f"{_FASTCHAT}/mt_bench/reference_answer/gpt-4.jsonl"
    "#sha256=f957a5bc977badb66885ec970e6cd08527845780313f0995764260e5777b9b3f",
    "prompts": _PROMPTS,
}
_VICUNA_BENCH = {
    "questions": f"{_FASTCHAT}/vicuna_bench/question.jsonl"
    "#sha256=c248c5c98ba45bb0c2aadae2f270e643bd32679c6c306a3b2a503ac4254cdaa5",
    "references": f"{_FASTCHAT}/vicuna_bench/reference_answer/gpt-4.jsonl"
    "#sha256=f7542dc25a5a869b32197486f5699a14eb5682ab3c7264518402399ec09ab470",
    "prompts": _PROMPTS,
}
_WITH_REFERENCE = ("math", "reasoning", "coding")
_TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
}
_USUAL_TEMPERATURE = 0.7  # of all other categories
_JUDGE_PROMPTS = (
    ("single-v1", "single-v1-multi-turn"),
    ("single-math-v1", "single-math-v1-multi-turn"),
)
"""Prompts of the first and the second turn, without and with reference answers."""


def mt_bench(
    data_files: Mapping[str, str] | None = None, **_: object
) -> dict[str, datasets.Dataset]:
    """Return the documents of MT-Bench, from the files that are given, else the published."""
    return {"test": datasets.Dataset.from_list(documents(chosen(_MT_BENCH, data_files)))}


def vicuna_bench(
    data_files: Mapping[str, str] | None = None, **_: object
) -> dict[str, datasets.Dataset]:
    """Return the documents of Vicuna-Bench, as `mt_bench` does."""
    return {"test": datasets.Dataset.from_list(documents(chosen(_VICUNA_BENCH, data_files)))}


def documents(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a document for each question: its turns, and what a judge is told about it."""
    prompts = {
        prompt["name"]: {name: prompt[name] for name in ("system_prompt", "prompt_template")}
        for prompt in read_lines(files["prompts"], "name", "system_prompt", "prompt_template")
    }
    references = {
        entry["question_id"]: list(entry["choices"][0]["turns"])
        for entry in read_lines(files["references"], "question_id", "choices")
    }
    found = []
    for question in read_lines(files["questions"], "question_id", "category", "turns"):
        number, category, turns = (question[name] for name in ("question_id", "category", "turns"))
        with_reference = category in _WITH_REFERENCE
        if with_reference and len(references.get(number, [])) < len(turns):
            raise ValueError(
                f"question {number} ({category}) has no reference answer to each of its turns"
            )
        temperature = _TEMPERATURES.get(category, _USUAL_TEMPERATURE)
        found.append(
            {
                "id": str(number),
                "category": category,
                "question": turns[0],
                "turns": turns,
                "follow_ups": turns[1:],
                "sampling": {"temperature": temperature, "do_sample": temperature > 0},
                "reference": references[number] if with_reference else [],
                "judge": [prompts[name] for name in _JUDGE_PROMPTS[with_reference][: len(turns)]],
            }
        )
    return found
