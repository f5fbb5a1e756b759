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
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.task import Task

from coordinate_eval.evaluators.harness.code_eval import asks_code_eval
from coordinate_eval.evaluators.judged.style import StyleControlled
from coordinate_eval.evaluators.judged.verdicts import Mean

_JUDGING = (
    "coordinate_eval.evaluators.harness.tasks.judged_task",
    Mean.__module__,
    StyleControlled.__module__,
)
"""Modules that replace a judged task's scoring: to them, answers are values."""

_HARNESS = Path(lm_eval.__file__).parent
_OWN_TASKS = _HARNESS / "tasks"

_RUNNING_NAMES = frozenset({"eval", "exec", "compile", "__import__", "__builtins__", "breakpoint"})
_RUNNING_ATTRIBUTES = frozenset(
    {
        *("eval", "exec", "system", "popen", "parse_expr", "sympify", "read_pickle", "read_hdf"),
        *("unsafe_load", "unsafe_load_all", "Loader", "UnsafeLoader", "CLoader", "CUnsafeLoader"),
        *("load_inline", "runstring", "import_function", "from_string", "apply_template"),
        *("create_subprocess_exec", "create_subprocess_shell", "subprocess_exec"),
        *("subprocess_shell", "get_type_hints", "ForwardRef", "FunctionType", "CodeType"),
        *(
            "methodcaller",
            "attrgetter",
            "__globals__",
            "__code__",
            "__subclasses__",
            "__getattribute__",
        ),
    }
)
"""Attributes that run text, whatever has them; the last ones find such things by name."""

_RUNNING_OF_OS = ("exec", "spawn", "posix_spawn", "startfile")
_RUNNING_PARTS = (
    *("logging.config", "multiprocessing.reduction", "multiprocessing.managers", "sys.modules"),
    *("multiprocessing.connection", "numpy.ctypeslib", "numpy.distutils", "numpy.f2py"),
    *(
        "numpy.testing",
        "sklearn.externals",
        "spacy.cli",
        "statsmodels.formula",
        "torch.distributed",
    ),
    *("torch.hub", "torch.package", "torch.utils.cpp_extension", "torch.load"),
    *("torch.serialization", "numpy.load", "numpy.lib.format", "pandas.io", "yaml.load"),
    "yaml.load_all",
)
"""Of packages that are harmless otherwise."""

_RUNNING_MODULES = frozenset({"builtins", "ctypes", "importlib", "pickle", "runpy", "subprocess"})
"""They run text also where another module is asked for them, such as `platform.subprocess`."""

_HARMLESS_MODULES = frozenset(
    {
        *("__future__", "abc", "argparse", "array", "ast", "asyncio", "base64", "binascii"),
        *("bisect", "calendar", "cmath", "codecs", "collections", "colorsys", "concurrent"),
        *("contextlib", "contextvars", "copy", "csv", "dataclasses", "datetime", "decimal"),
        *("difflib", "enum", "errno", "faulthandler", "fnmatch", "fractions", "functools", "gc"),
        *("getpass", "glob", "gzip", "hashlib", "heapq", "hmac", "html", "http", "inspect", "io"),
        *("ipaddress", "itertools", "json", "keyword", "linecache", "locale", "logging", "math"),
        *("mimetypes", "multiprocessing", "numbers", "operator", "os", "pathlib", "platform"),
        *("pprint", "queue", "random", "re", "reprlib", "resource", "secrets", "select"),
        *("shlex", "shutil", "signal", "socket", "stat", "statistics", "string", "struct", "sys"),
        *("sysconfig", "tempfile", "textwrap", "threading", "time", "token", "tokenize"),
        *("tomllib", "traceback", "types", "typing", "unicodedata", "urllib", "uuid"),
        *("warnings", "weakref", "xml", "zipfile", "zlib", "zoneinfo"),
    }
)
"""Of the standard library."""

_TABLES = frozenset({".globals", ".vars", ".locals"})
"""Calls that give a table of names, in which any function can be found."""

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
    functions = list(scoring_functions(task))
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


def scoring_functions(task: Task) -> Iterator[Any]:
    """Yield all that a task calls on responses, without wrappers."""
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
    if module in _JUDGING:
        return True
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
        tree = ast.parse(file.read_bytes())
        imported = _imported(tree)
        for node in ast.walk(tree):
            for name, level in _imports(node):
                beside = _module_beside(file, name, level)
                if beside is not None and beside not in seen:
                    seen.add(beside)
                    files.append(beside)
                elif beside is None and (_names_running(name) or not _is_harmless(name, level)):
                    yield f"{_place(file, node)} imports {name}"
            what = _runs(node, imported)
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
        return package in _HARMLESS_MODULES
    return package in _HARMLESS_PACKAGES


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return what names stand for, such as `pd` for `pandas`, where they are imported or set."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                found[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = _dotted(node.value, found)
            if name and not name.startswith("."):
                found.setdefault(node.targets[0].id, name)
    return found


def _dotted(node: ast.AST, imported: dict[str, str]) -> str:
    """Return the whole name of a function or module; it begins with a dot if that is unknown."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, f".{node.id}")
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, imported)}.{node.attr}"
    return ""


def _names_running(name: str) -> bool:
    """Return whether a whole name is that of something that runs text."""
    package, *parts = name.split(".")
    last = parts[-1] if parts else ""
    of_os = [last for of, last in itertools.pairwise([package, *parts]) if of == "os"]
    return (
        last in _RUNNING_ATTRIBUTES
        or last == "*"
        or any(each.startswith(_RUNNING_OF_OS) for each in of_os)
        or bool(package and _RUNNING_MODULES.union(["__dict__"]).intersection(parts))
        or f"{name}.".startswith(tuple(f"{part}." for part in _RUNNING_PARTS))
    )


def _runs(node: ast.AST, imported: dict[str, str]) -> str:
    """Return the name of what runs text in a piece of code, or nothing."""
    if isinstance(node, ast.Name) and node.id in _RUNNING_NAMES:
        return node.id
    if isinstance(node, ast.Attribute) and _names_running(_dotted(node, imported)):
        return ast.unparse(node)[:80]
    if _finds_by_name(node):
        return ast.unparse(node)[:80]
    if isinstance(node, ast.Call):
        name = _dotted(node.func, imported)
        if not _call_is_harmless(name, node, imported):
            return ast.unparse(node)[:80]
        for word in node.keywords:
            if word.arg in ("allow_pickle", "eval_str"):
                return f"{ast.unparse(node.func)} with {word.arg}"
    return ""


def _call_is_harmless(name: str, call: ast.Call, imported: dict[str, str]) -> bool:
    """Return whether a call loads, asks or finds nothing that the model could have named."""
    package, _, rest = name.partition(".")
    last = rest.rpartition(".")[2]
    first = call.args[0] if call.args else None
    if name == "evaluate.load":
        return _loads_harmless_metric(call)
    if last in ("load", "load_all", "loads"):  # of pickles, YAML, models
        return package in ("json", "tomllib") or isinstance(first, ast.Constant)
    if last == "query":  # of a table
        return isinstance(first, ast.Constant)
    if name == ".getattr" and len(call.args) > 1:
        of, wanted = _dotted(call.args[0], imported), call.args[1]
        if isinstance(wanted, ast.Constant):
            return not _names_running(f"{of}.{wanted.value!s}")
        return not of or of.startswith(".")  # an object, not a module
    return True


def _finds_by_name(node: ast.AST) -> bool:
    """Return whether a piece of code looks something up in a table of names."""
    if isinstance(node, ast.Subscript):
        looks_up = isinstance(node.ctx, ast.Load)
    else:
        looks_up = isinstance(node, ast.Attribute) and node.attr in ("get", "pop")
    table = getattr(node, "value", None)
    return looks_up and isinstance(table, ast.Call) and _dotted(table.func, {}) in _TABLES


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
