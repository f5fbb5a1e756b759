"""Check engine arguments for vLLM without importing it, which takes seconds and needs torch.

The names and types are those of the dataclass `EngineArgs` in the installed package, read from
its source. They differ between versions of vLLM, so no list of them is kept here. If vLLM is not
installed on this machine, only the arguments with a rule of their own are checked.
"""

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from coordinate_eval._format import brief
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines import common

_FROM_CHECKPOINT = "it is set from the checkpoint"
_FROM_PLAN = "the plan divides a model among GPUs and nodes; set [trial] tensor_parallel instead"

_OURS = {
    "model": _FROM_CHECKPOINT,
    "tokenizer": _FROM_CHECKPOINT,
    "trust_remote_code": "code in a checkpoint is never run",
    "max_model_len": "prompts are cut to [trial] max_length; set that instead",
    "tensor_parallel_size": _FROM_PLAN,
    "pipeline_parallel_size": _FROM_PLAN,
    "data_parallel_size": _FROM_PLAN,
    **dict.fromkeys(("nnodes", "node_rank", "master_addr", "master_port"), _FROM_PLAN),
}
"""Arguments that a user cannot give, with the reason."""

_SAFE_FORMATS = ("safetensors", "fastsafetensors", "runai_streamer", "instanttensor", "dummy")
"""Load formats that read nothing but safetensors, which cannot hold code."""

_PLAIN: dict[str, tuple[tuple[type, ...], str]] = {
    # annotation: (types of the JSON value, words for a message)
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a string"),
    "list": ((list,), "a list"),
    "set": ((list,), "a list"),
    "dict": ((dict,), "an object"),
}

_METHODS = "QuantizationMethods"
_ALSO = {"auto-round": ("inc",), "intel/auto-round": ("inc",)}
"""Methods that vLLM takes under another name."""

_MOST_HOPS = 4
"""Number of modules through which the import of a name is followed."""


def check_args(args: Mapping[str, Any], *, here: bool = True) -> None:
    """Check the names and values of engine arguments, as read from JSON. See `EngineModule`."""
    for name in args:
        if name in _OURS:
            raise UserError(f"engine argument {name} cannot be given: {_OURS[name]}")
    form = args.get("load_format", _SAFE_FORMATS[0])
    if form not in _SAFE_FORMATS:
        raise UserError(
            f"engine argument load_format={form!r} may run code hidden in a checkpoint: "
            f"choose one of {', '.join(_SAFE_FORMATS)}"
        )
    if str(args.get("logprobs_mode", "")).endswith("logits"):
        raise UserError(
            f"engine argument logprobs_mode={args['logprobs_mode']!r} gives logits, and scores are "
            "made of log-probabilities: leave it out"
        )
    root = _installed() if here else None
    fields = _fields(root) if args and root else None
    if root is None or fields is None:
        return
    common.check_names("the installed vLLM", args, fields.keys() - _OURS.keys())
    for name, value in args.items():
        wanted = _Type(fields[name], root / "engine" / "arg_utils.py", root)
        if not wanted.takes(value):
            raise common.wrong(name, value, wanted.words())


def check_quantization(method: str) -> None:
    """Check that the installed vLLM knows how a checkpoint's weights are quantized.

    A plugin may teach it more.
    """
    root = _installed()
    plugins = entry_points(group="vllm.general_plugins")
    if not method or root is None or any(not each.value.startswith("vllm.") for each in plugins):
        return
    known: set[str] = set()
    for node in _parsed(root / "model_executor" / "layers" / "quantization" / "__init__.py"):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(each, ast.Name) and each.id == _METHODS for each in targets):
            literals = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
            known = {str(each.value) for each in literals}
    if known and not {method, method.replace("-", "_"), *_ALSO.get(method, ())} & known:
        raise UserError(
            f"the weights are quantized by {brief(method)}, which the installed vLLM does not know "
            f"({', '.join(sorted(known))}). Save the model in 16 bits, or install a version or a "
            "plugin of vLLM that knows it"
        )


def _installed() -> Path | None:
    """Return the folder of the installed package."""
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def _fields(root: Path) -> dict[str, ast.expr] | None:
    """Return the annotation of each public field of `EngineArgs`.

    None if the class cannot be read in full: it has moved, has no fields, or inherits from another.
    """
    for node in _parsed(root / "engine" / "arg_utils.py"):
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs" and not node.bases:
            fields = {
                field.target.id: field.annotation
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if not field.target.id.startswith("_")
            }
            return fields or None
    return None


@cache
def _parsed(file: Path) -> list[ast.stmt]:
    try:
        return ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []


@dataclass(frozen=True)
class _Type:
    """A type annotation in a module of vLLM. One that is not understood takes any value."""

    node: ast.expr
    file: Path
    root: Path

    def takes(self, value: Any) -> bool:  # noqa: ANN401 - any JSON value
        """Return whether vLLM takes this value, so far as the annotation tells."""
        if members := self._members():
            return any(member.takes(value) for member in members)
        if (choices := self._choices()) is not None:
            return any(_alike(value, choice) for choice in choices)
        if isinstance(self.node, ast.Constant) and self.node.value is None:
            return value is None
        name, inner = self._name()
        if name not in _PLAIN:
            return True
        types, _ = _PLAIN[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return False
        if isinstance(value, list) and inner:
            return all(inner[0].takes(each) for each in value)
        return True

    def words(self) -> str:
        """Return the values that it takes, for a message."""
        if members := self._members():
            return " or ".join(dict.fromkeys(member.words() for member in members))
        if (choices := self._choices()) is not None:
            return f"one of {', '.join(map(str, choices))}"
        name, inner = self._name()
        if name in ("list", "set") and inner:
            return f"a list, each of it {inner[0].words()}"
        return _PLAIN[name][1] if name in _PLAIN else ast.unparse(self.node).replace("None", "null")

    def _members(self) -> list["_Type"]:
        """Return the members of a union, and the definition of a name that has one."""
        node = self.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return [self._at(node.left), self._at(node.right)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return [self._at(ast.parse(node.value, mode="eval").body)]
            except (SyntaxError, ValueError):
                return []
        if isinstance(node, ast.Name) and node.id not in _PLAIN:
            literal = _literal(self.root, self.file, node.id)
            return [self._at(literal)] if literal else []
        return []

    def _choices(self) -> list[object] | None:
        """Return the values of a `Literal`."""
        name, inner = self._name()
        values = [each.node.value for each in inner if isinstance(each.node, ast.Constant)]
        return list(values) if name == "Literal" and len(values) == len(inner) else None

    def _name(self) -> tuple[str, list["_Type"]]:
        """Return the name of a type, and what stands in its brackets."""
        node, inner = self.node, list[ast.expr]()
        if isinstance(node, ast.Subscript):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            node = node.value
        return node.id if isinstance(node, ast.Name) else "", [self._at(each) for each in inner]

    def _at(self, node: ast.expr) -> "_Type":
        return _Type(node, self.file, self.root)


def _alike(value: Any, choice: object) -> bool:  # noqa: ANN401 - any JSON value
    """Compare as vLLM does: some of its validators ignore case, and take `-` for `_`."""
    if isinstance(value, str) and isinstance(choice, str):
        return value.lower().replace("-", "_") == choice.lower().replace("-", "_")
    return type(value) is type(choice) and value == choice


def _literal(root: Path, file: Path, name: str, hops: int = _MOST_HOPS) -> ast.expr | None:
    """Find `name = Literal[...]` in a module, or in that from which the module imports it."""
    for node in _parsed(file):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            literal = ast.unparse(node.value).startswith("Literal[")
            return node.value if literal else None
    for found in ast.walk(ast.Module(body=_parsed(file), type_ignores=[])):
        if not isinstance(found, ast.ImportFrom) or found.level or not hops:
            continue
        for alias in found.names:
            module = (found.module or "").split(".")
            if (alias.asname or alias.name) == name and module[0] == root.name:
                place = root.joinpath(*module[1:])
                source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
                return _literal(root, source, alias.name, hops - 1)
    return None
