"""The pickle in a file of torch.save, followed without running it.

A pickle is a program. This module follows its opcodes with inert values, so that no function is
ever called. A state dict needs few names; any other name makes the file suspicious, and the error
says which.

Keys of dicts are kept only if they are names or numbers, so that following a small file never takes
hours of hashing. Nothing else loads the file: torch never sees it.
"""

import math
import pickletools
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES
from coordinate_eval.errors import UserError

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
# The part of torch's list for weights_only that state dicts and plain training states use.
_HARMLESS = {
    ("_codecs", "encode"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "Tensor"),
    ("torch", "device"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.serialization", "_get_layout"),
    ("torch.storage", "TypedStorage"),
    ("torch.storage", "UntypedStorage"),
    *(("torch", name) for name in (*_STORAGES, *ITEM_BYTES)),
    *((module, name) for module in ("builtins", "__builtin__") for name in ("set", "bytearray")),
}
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 1 << 60  # of a tensor; torch has as many dimensions
_MOST_OPCODES = 5_000_000  # seconds of work; a tensor takes about 30, its optimizer's state 100
_MOST_NUMBER = 1 << 62  # larger ones may all have one hash, and are too long to print
_OF_RANKS = ("torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed._shard")
_MATTERING = ("OrderedDict", "Size", "_rebuild")
"""Beginnings of the names whose calls give dicts, shapes and tensors."""

HOW_TO_SAVE = "Save the weights alone: torch.save(model.state_dict(), PATH)"

_MARK, _UNKNOWN = object(), object()


class Global(NamedTuple):
    """A name that a pickle has, such as that of a type of numbers."""

    module: str
    name: str


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str | None


@dataclass(eq=False)
class Object:
    """An inert object of a class that the reader has listed."""

    kind: str
    """The name of the class."""
    arguments: object
    state: object = None


class _Dict(dict[str | int, Any]):
    """A dict of what has a text or a number as its key."""

    __slots__ = ("objects", "others")  # a pickle can have a dict in each byte

    def __init__(self) -> None:
        super().__init__()
        self.objects: list[tuple[Object, Any]] | tuple[()] = ()
        """Keys that are objects, and their values."""
        self.others = 0
        """Number of keys that are neither."""


@dataclass(frozen=True)
class StoredTensor:
    """A saved tensor. Views of one storage have equal keys."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Elements of its type before the first one, in its storage."""
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return the number of its elements."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Return the bytes of its storage up to its last element."""
        if not self.elements:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (self.offset + last + 1) * ITEM_BYTES[self.dtype]


def walk(
    pickled: bytes,
    path: Path,
    classes: Container[tuple[str, str]] = frozenset(),
    most_opcodes: int | None = None,
) -> object:
    """Return what the pickle would make: dicts, lists, tuples, `StoredTensor`, and unknowns.

    Args:
        pickled: the pickle.
        path: names the file in messages.
        classes: which it may name besides those of state dicts, by module and name. What it would
            make of them is an `Object`.
        most_opcodes: more of them are not followed.

    Raises:
        UserError: It is damaged, would run code, or makes more than tensors.
    """
    # All names are checked before anything is concluded.
    try:
        machine = _Machine(path, classes)
        for number, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
            if number == (most_opcodes or _MOST_OPCODES):
                raise UserError(f"{path} holds more than tensors. {HOW_TO_SAVE}")
            follow = _STEPS.get(opcode.name)
            if follow is None:
                raise UserError(f"{path} holds more than tensors ({opcode.name}). {HOW_TO_SAVE}")
            follow(machine, argument)
        return machine.stack[-1]
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: its pickle cannot be read ({brief(error)})") from error


class _Machine:
    """A pickle machine whose values do nothing."""

    def __init__(self, path: Path, classes: Container[tuple[str, str]]) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._path = path
        self._classes = classes

    def push(self, argument: object) -> None:
        self.stack.append(argument)

    def push_number(self, argument: Any) -> None:  # noqa: ANN401
        self.stack.append(argument if abs(argument) < _MOST_NUMBER else _UNKNOWN)

    def memoize(self, argument: Any) -> None:  # noqa: ANN401  # as pickletools has it
        self._memo[len(self._memo) if argument is None else int(argument)] = self.stack[-1]

    def get(self, argument: Any) -> None:  # noqa: ANN401
        self.stack.append(self._memo[int(argument)])

    def name(self, argument: Any) -> None:  # noqa: ANN401
        module, name = argument.split(" ", 1) if argument else self._pop(2)
        self.stack.append(self._global(module, name))

    def join(self, argument: object) -> None:
        self.stack.append(tuple(self._since_mark()))

    def join_last(self, count: int) -> None:
        self.stack[-count:] = [tuple(self._last(count))]

    def make_list(self, argument: object) -> None:
        self.stack.append(self._since_mark())

    def make_dict(self, argument: object) -> None:
        pairs = self._since_mark()
        self.stack.append(_Dict())
        self._put(self.stack[-1], pairs)

    def set_items(self, argument: object) -> None:
        pairs = self._since_mark()
        self._put(self.stack[-1], pairs)

    def set_item(self, argument: object) -> None:
        pair = self._pop(2)
        self._put(self.stack[-1], pair)

    def extend(self, argument: object) -> None:
        values = self._since_mark()
        _extend(self.stack[-1], values)

    def append(self, argument: object) -> None:
        values = self._pop(1)
        _extend(self.stack[-1], values)

    def drop(self, argument: object) -> None:
        self.stack.pop()

    def drop_to_mark(self, argument: object) -> None:
        self._since_mark()

    def double(self, argument: object) -> None:
        self.stack.append(self.stack[-1])

    def build(self, argument: object) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Object):
            self.stack[-1].state = state
        elif isinstance(self.stack[-1], StoredTensor):
            raise UserError(f"{self._path} changes a tensor that it made. {HOW_TO_SAVE}")

    def store(self, argument: object) -> None:
        self.stack.append(_storage(self.stack.pop()))

    def call(self, argument: object) -> None:
        function, arguments = self._pop(2)
        self.stack.append(self._made(function, arguments))

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes what is not there")
        return self.stack[-count:]

    def _pop(self, count: int) -> list[Any]:
        taken = self._last(count)
        del self.stack[-count:]
        return taken

    def _made(self, function: object, arguments: object) -> object:
        """Return what a call gives."""
        module, name = function if isinstance(function, Global) else ("", "")
        if (module, name) in _HARMLESS and name.startswith(_MATTERING):
            return _result(name, arguments)
        return Object(name, arguments)

    def _put(self, target: object, pairs: list[Any]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(target, _Dict):
                return
            if isinstance(key, str) or type(key) is int:
                target[key] = value
            elif isinstance(key, Object):
                if isinstance(target.objects, tuple):
                    target.objects = []
                target.objects.append((key, value))
            else:
                target.others += 1

    def _since_mark(self) -> list[Any]:
        taken: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def _global(self, module: object, name: object) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise UserError(f"{self._path} hides what it would run. {HOW_TO_SAVE}")
        if module.startswith(_OF_RANKS) and (module, name) not in self._classes:
            raise UserError(
                f"{self._path} holds parts of tensors that one of several ranks had "
                f"({brief(name)}), not whole ones. Save with torch.distributed.checkpoint, which "
                "is read, or gather the weights first: get_model_state_dict(model, options="
                "StateDictOptions(full_state_dict=True, cpu_offload=True))"
            )
        if (module, name) not in _HARMLESS and (module, name) not in self._classes:
            raise UserError(
                f"{self._path} would run code when loaded: {brief(repr(f'{module}.{name}'))}; "
                f"nothing was loaded. {HOW_TO_SAVE}"
            )
        return Global(module, name)


def _pushing(make: Callable[[], object]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(
        (
            "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BYTEARRAY8",
            "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "SHORT_BINUNICODE",
            "BINUNICODE", "BINUNICODE8",
        ),
        _Machine.push,
    ),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _Machine.push_number
    ),
    "MARK": _pushing(lambda: _MARK),
    "NONE": _pushing(lambda: None),
    "NEWTRUE": _pushing(lambda: True),
    "NEWFALSE": _pushing(lambda: False),
    "EMPTY_TUPLE": _pushing(tuple),
    "EMPTY_LIST": _pushing(list),
    "EMPTY_DICT": _pushing(_Dict),
    "EMPTY_SET": _pushing(list),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _Machine.name),
    "TUPLE": _Machine.join,
    "TUPLE1": lambda machine, _: machine.join_last(1),
    "TUPLE2": lambda machine, _: machine.join_last(2),
    "TUPLE3": lambda machine, _: machine.join_last(3),
    "LIST": _Machine.make_list,
    "DICT": _Machine.make_dict,
    "SETITEMS": _Machine.set_items,
    "SETITEM": _Machine.set_item,
    "APPENDS": _Machine.extend,
    "APPEND": _Machine.append,
    "ADDITEMS": _Machine.extend,
    "POP": _Machine.drop,
    "POP_MARK": _Machine.drop_to_mark,
    "DUP": _Machine.double,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.store,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.call),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda *_: None),
}  # fmt: skip
"""The machine's step for each opcode, by the opcode's name."""


def _extend(target: object, values: list[Any]) -> None:
    if isinstance(target, list):
        target += values


def _storage(persistent: object) -> _Storage:
    """Return the storage that `('storage', type, key, device, elements)` describes."""
    if not isinstance(persistent, tuple) or len(persistent) < 3:
        raise ValueError("a storage is described wrongly")
    kind, key = persistent[1:3]
    if not isinstance(key, str):
        raise ValueError("a storage has no name")
    return _Storage(key, _STORAGES.get(kind.name))


def _result(name: str, arguments: object) -> object:
    """Return what a call of a harmless name gives, as far as it matters here."""
    if name == "OrderedDict":
        if arguments != ():
            raise ValueError("an OrderedDict is made of something")
        return _Dict()
    if name == "Size" and isinstance(arguments, tuple) and arguments:
        return arguments[0]
    return next(_tensors(arguments), _UNKNOWN)


def _place(arguments: tuple[object, ...]) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Return shape, offset and strides of a tensor that `(storage, offset, sizes, …)` describes."""
    offset, sizes, strides = arguments[1:4]
    if not isinstance(sizes, tuple) or not isinstance(strides, tuple):
        raise ValueError("a tensor is described wrongly")
    if len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS:
        raise ValueError("a tensor is described wrongly")
    if not all(type(n) is int and 0 <= n <= _MOST_ELEMENTS for n in (offset, *sizes, *strides)):
        raise ValueError("a tensor's sizes are described wrongly")
    if math.prod(sizes) > _MOST_ELEMENTS:
        raise ValueError("a tensor is larger than any memory")
    if any(isinstance(each, _Dict) and each for each in arguments[4:]):
        raise ValueError("a tensor is conjugated, negated, or has hooks")
    assert type(offset) is int
    return sizes, offset, strides


def _tensors(arguments: object, depth: int = 2) -> Iterator[StoredTensor]:
    """Yield the tensors that the arguments of a rebuilding function describe or contain.

    Look at as many arguments as such functions take: in a few bytes a pickle can nest values that
    double 64 times.
    """
    if not isinstance(arguments, tuple) or not depth:
        return
    arguments = arguments[:8]
    types = [each.name for each in arguments if isinstance(each, Global)]
    named = [name for name in types if name in ITEM_BYTES]
    for value in arguments:
        if isinstance(value, StoredTensor):
            yield value
        elif isinstance(value, _Storage):
            dtype = value.dtype or (named or ["uint8"])[0]
            yield StoredTensor(value.key, dtype, *_place(arguments))
        elif isinstance(value, tuple):
            yield from _tensors(value, depth - 1)
