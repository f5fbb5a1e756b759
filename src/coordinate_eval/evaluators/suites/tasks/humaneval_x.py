"""Programs of HumanEval-X: how an answer becomes a program of each language.

The rules are those of the published evaluators, CodeGeeX's and bigcode-evaluation-harness's: where
an answer ends, which imports are added, and in which order the parts follow each other.
"""

import re
from collections.abc import Sequence
from typing import Any

Doc = dict[str, Any]

_PYTHON_IMPORTS = """\
import math
import re
import sys
import copy
import datetime
import itertools
import collections
import heapq
import statistics
import functools
import hashlib
import numpy
import numpy as np
import string
from typing import *
from collections import *
"""
_CPP_INCLUDES = (
    "stdlib.h", "algorithm", "math.h", "stdio.h", "vector", "string", "climits", "cstring",
    "iostream",
)  # fmt: skip
_GO_PACKAGES = (
    "math", "strings", "fmt", "strconv", "time", "bytes", "regexp", "sort", "math/rand",
    "crypto/md5",
)  # fmt: skip
# A failed console.assert only prints. So a program that prints anything fails.
_JS_PRINTS_NOTHING = (
    "for (const out of [process.stdout, process.stderr]) { const write = out.write; "
    "out.write = (...text) => { process.on('exit', () => { process.exitCode = 1 }); "
    "return write.apply(out, text) } }; "
)
_MAIN_OF_RUST = "fn main(){}\n"
_PYTHON_SECONDS = 10.0


def prompt(doc: Doc) -> str:
    """Return what the model goes on with. In Rust the signature is not a part of the prompt."""
    if _language(doc) == "rust":
        return f"{_MAIN_OF_RUST}{doc['declaration']}{doc['prompt']}"
    return str(doc["prompt"])


def programs(responses: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[list[str]]:
    """Return the programs of each document's answers, without their tests."""
    return [
        [program(doc, answer(_language(doc), text)) for text in texts]
        for texts, doc in zip(responses, docs, strict=True)
    ]


def answer(language: str, text: str) -> str:
    """Return the part of a text that is the body of the function that was asked for."""
    if language == "python":
        lines = text.split("\n")
        ends = (n for n, line in enumerate(lines) if line.strip() and line[0] not in " \t")
        return "\n".join(lines[: next(ends, len(lines))])
    open_braces = 2 if language == "java" else 1  # a class and its method
    for place, character in enumerate(text):
        open_braces += (character == "{") - (character == "}")
        if open_braces == 0:
            return text[: place + 1]
    if language == "java":
        text = text.partition("public static void main")[0]
    body, brace, _ = text.rpartition("}")
    closed = f"{body}{brace}" if brace else text
    only_class_open = closed.count("{") + 1 == closed.count("}")
    return f"{closed}\n}}" if language == "java" and only_class_open else closed


def program(doc: Doc, body: str) -> str:
    """Return the program that this body of the function makes, without its tests."""
    language = _language(doc)
    start = prompt(doc)
    if language == "python":
        start = f"{_PYTHON_IMPORTS}{start}"
    elif language == "cpp":
        missing = [f"#include<{name}>\n" for name in _CPP_INCLUDES if f"<{name}>" not in start]
        start = f"{''.join(missing)}{start}"
    elif language == "go":
        start = f"{doc['test_setup']}\n{_go_imports(doc, body)}{_without_imports(doc)}"
    elif language == "js":
        start = f"{_JS_PRINTS_NOTHING}{start}"
    return f"{start}{body}"


def pass_at_k(
    references: list[str], predictions: list[list[str]], k: list[int], language: str
) -> dict[str, float]:
    """Return the unbiased estimate of pass@k for each k for which there are enough answers."""
    import evaluate

    seconds = _PYTHON_SECONDS if language == "python" else None
    scores, _ = evaluate.load("code_eval").compute(
        references=references, predictions=predictions, k=k, language=language, timeout=seconds
    )
    return dict(scores)


def _go_imports(doc: Doc, body: str) -> str:
    """Return the import of the packages that a body uses and its tests do not import."""
    code = re.sub(r"//.*", "", body)
    used = [
        f'    "{package}"\n'
        for package in _GO_PACKAGES
        if f'"{package}"' not in doc["test_setup"]
        and re.search(rf"\b{package.rpartition('/')[2]}\.", code)
    ]
    return f"import (\n{''.join(used)})\n" if used else ""


def _without_imports(doc: Doc) -> str:
    return str(doc["prompt"]).replace(doc["import"], "") if doc["import"] else str(doc["prompt"])


def _language(doc: Doc) -> str:
    return _NAMES[str(doc["task_id"]).partition("/")[0]]


_NAMES = {
    "Python": "python", "CPP": "cpp", "Go": "go", "Java": "java", "JavaScript": "js",
    "Rust": "rust",
}  # fmt: skip
