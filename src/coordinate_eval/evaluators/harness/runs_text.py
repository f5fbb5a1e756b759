"""Tasks whose scoring may run what the model wrote, found in their code before anything is run.

A task's functions are trusted, but some hand the model's text to something that runs it: `eval`, a
shell, or a parser that is built on `eval`, such as sympy's. Their scoring is kept apart from that
of other datasets, and refused where nothing confines it.

The modules of a task's process_results, metrics, aggregations, filters and class are read, with the
modules beside them that they import. Of imported packages only those count as harmless that are
known to keep text as text. So a task may be named here that runs nothing.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.task import Task

from coordinate_eval.evaluators.harness.code_eval import asks_code_eval

_HARNESS = Path(lm_eval.__file__).parent
_OWN_TASKS = _HARNESS / "tasks"

_RUNNING_NAMES = frozenset({"eval", "exec", "compile", "__import__", "__builtins__", "breakpoint"})
_RUNNING_ATTRIBUTES = frozenset(
    {"eval", "exec", "read_pickle", "system", "popen", "parse_expr", "sympify", "unsafe_load"}
)
_RUNNING_OF_OS = ("exec", "spawn", "posix_spawn")
_RUNNING_MODULES = frozenset(
    {
        *("bdb", "builtins", "cProfile", "code", "codeop", "ctypes", "dbm", "doctest", "imp"),
        *("importlib", "marshal", "pdb", "pickle", "pkgutil", "profile", "pty", "runpy", "shelve"),
        *("sqlite3", "subprocess", "timeit", "trace", "zipimport"),
    }
)
"""Of the standard library."""

_HARMLESS_PACKAGES = frozenset(
    {
        *("absl", "bert_score", "bs4", "datasets", "editdistance", "emoji", "evaluate", "ftfy"),
        *("fugashi", "fuzzywuzzy", "html2text", "httpx", "huggingface_hub", "immutabledict"),
        *("inflect", "iso639", "jieba", "jsonschema", "langcodes", "langdetect", "Levenshtein"),
        *("neologdn", "nltk", "numpy", "openai", "packaging", "pandas", "psutil", "pycountry"),
        *("pymorphy3", "rapidfuzz", "regex", "requests", "rouge", "rouge_score", "sacrebleu"),
        *("scipy", "sentencepiece", "sklearn", "spacy", "statsmodels", "tiktoken", "tokenizers"),
        *("torch", "tqdm", "transformers", "typing_extensions", "unidecode", "wonderwords"),
        *("word2number", "yaml"),
    }
)
_HARMLESS_METRICS = frozenset(
    {
        *("accuracy", "bertscore", "bleu", "bleurt", "brier_score", "cer", "chrf", "comet"),
        *("exact_match", "f1", "google_bleu", "mae", "matthews_correlation", "mauve", "meteor"),
        *("mse", "nist_mt", "pearsonr", "perplexity", "precision", "recall", "rouge", "sacrebleu"),
        *("spearmanr", "squad", "squad_v2", "ter", "wer"),
        "code_eval",  # a stand-in, whose programs run in the sandbox
    }
)
"""Of the library `evaluate`, which loads others from a hub by their names."""


def what_runs_text(task: Task) -> str:
    """Return what in a task's scoring may run what the model wrote, in a few words, or nothing.

    Call it after the task has made its instances: a task that only compares log-likelihoods gets
    no text to run.
    """
    if not any(instance.request_type == "generate_until" for instance in task.instances):
        return ""
    functions = list(_functions(task))
    files: list[Path] = []
    for function in functions:
        if not _is_known(function):
            file = _file_of(function)
            if file is None:
                return f"{function!r} has no Python source"[:100]
            files.append(file)
    found = next(_findings(files), "")
    marked = getattr(task, "UNSAFE_CODE", False)
    if not found and marked and not any(map(asks_code_eval, functions)):
        return "it marks itself as unsafe"
    return found


def _functions(task: Task) -> Iterator[Any]:
    """Yield all that a task calls on the model's text, without wrappers."""
    for found in (
        getattr(task.config, "process_results", None),
        *getattr(task, "_metric_fn_list", {}).values(),
        *getattr(task, "_aggregation_list", {}).values(),
        *(step for ensemble in task._filters for step in ensemble.filters),
    ):
        if callable(found):
            yield from _unwrapped(found)
    yield from type(task).__mro__


def _unwrapped(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield a function, and those that it is made of."""
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            if callable(part):
                yield from _unwrapped(part)
    else:
        yield inspect.unwrap(function)


def _is_known(function: Any) -> bool:  # noqa: ANN401  whatever a task calls
    """Return whether a function or class belongs to a package that keeps text as text."""
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    if module == "builtins":
        return getattr(function, "__name__", "") not in _RUNNING_NAMES
    return not module.startswith("lm_eval.tasks") and _is_harmless(module, 0)


def _file_of(function: Any) -> Path | None:  # noqa: ANN401  as above
    """Return the source file of a function, method, class or callable object."""
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return None
    return Path(file) if file else None


def _findings(files: list[Path]) -> Iterator[str]:
    """Yield what runs text in these files and in the modules beside them that they import."""
    seen = set(files)
    while files:
        file = files.pop()
        for node in ast.walk(ast.parse(file.read_bytes())):
            for name, level in _imports(node):
                beside = _module_beside(file, name, level)
                if beside is not None and beside not in seen:
                    seen.add(beside)
                    files.append(beside)
                elif beside is None and not _is_harmless(name, level):
                    yield f"{_place(file, node)} imports {name}"
            what = _runs(node)
            if what:
                yield f"{_place(file, node)} calls {what}"


def _imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the modules that a statement imports, and how many folders above its own they are."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, 0
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        # A name may be a function of the module, or a module of the package.
        for alias in node.names:
            yield (f"{base}.{alias.name}" if base else alias.name), node.level


def _module_beside(file: Path, name: str, level: int) -> Path | None:
    """Return the file of an imported module of tasks, None for an installed package."""
    parts = name.split(".")
    folder = file.parents[max(level - 1, 0)]
    if parts[:2] == ["lm_eval", "tasks"]:
        folder, parts = _OWN_TASKS, parts[2:]
    for length in (len(parts), len(parts) - 1):
        path = folder.joinpath(*parts[:length])
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if length and found.is_file():
                return found
    return None


def _is_harmless(name: str, level: int) -> bool:
    """Return whether an installed package keeps the text that it is given as text."""
    package = name.partition(".")[0]
    if level or package == "lm_eval" or name.startswith("importlib.metadata"):
        return True
    if package in sys.stdlib_module_names:
        return package not in _RUNNING_MODULES
    return package in _HARMLESS_PACKAGES


def _runs(node: ast.AST) -> str:
    """Return the name of what runs text in a piece of code, or nothing."""
    if isinstance(node, ast.Name) and node.id in _RUNNING_NAMES:
        return node.id
    if isinstance(node, ast.Attribute):
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        running = node.attr in _RUNNING_ATTRIBUTES or (of == "yaml" and node.attr == "load")
        if running or (of == "os" and node.attr.startswith(_RUNNING_OF_OS)):
            return f"{of}.{node.attr}".lstrip(".")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = ast.unparse(node.func)
        if called == "evaluate.load" and not _loads_harmless_metric(node):
            return ast.unparse(node)[:80]
        if any(word.arg == "allow_pickle" for word in node.keywords):
            return f"{called} with allow_pickle"
    return ""


def _loads_harmless_metric(call: ast.Call) -> bool:
    name = call.args[0] if call.args else None
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        return False
    return name.value.rpartition("/")[2] in _HARMLESS_METRICS


def _place(file: Path, node: ast.AST) -> str:
    """Return file and line in the words of somebody who knows the task."""
    resolved = file.resolve()
    known = resolved.is_relative_to(_HARNESS)
    shown = resolved.relative_to(_HARNESS.parent) if known else file
    return f"{shown}, line {getattr(node, 'lineno', 0)},"
