"""Classes that the pickles of training states name beside the weights: nothing is made of them."""

import re
from collections.abc import Container
from typing import Any, Final

_OF_TRAINERS = frozenset(
    (module, name)
    for modules, names in (
        ("numpy", "ndarray dtype"),
        ("numpy.core.multiarray numpy._core.multiarray", "_reconstruct scalar"),
        ("numpy._core.numeric numpy.core.numeric", "_frombuffer"),
        ("argparse", "Namespace"),
        ("types", "SimpleNamespace"),
        ("collections", "defaultdict deque"),
        ("datetime", "datetime timedelta date timezone"),
        ("functools", "partial"),
        ("pathlib pathlib._local", "Path PosixPath PurePosixPath"),
        (
            "builtins __builtin__",
            "dict list tuple frozenset int float bool str bytes complex slice range",
        ),
        ("torch.torch_version", "TorchVersion"),
        ("torch._utils", "_rebuild_wrapper_subclass"),  # the class that it names is judged
        ("torch.serialization", "_get_layout"),
        ("omegaconf.dictconfig", "DictConfig"),
        ("omegaconf.listconfig", "ListConfig"),
        ("omegaconf.base", "ContainerMetadata Metadata"),
        ("omegaconf.nodes", "AnyNode BooleanNode EnumNode FloatNode IntegerNode StringNode"),
        ("typing", "Any"),
        ("lightning.fabric.utilities.data lightning_fabric.utilities.data", "AttributeDict"),
        (
            "pytorch_lightning.utilities.parsing lightning.pytorch.utilities.parsing",
            "AttributeDict",
        ),
        ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"),
    )
    for module in modules.split()
    for name in names.split()
)
_CONFIGS = re.compile(
    r"transformers\.models\.\w+\.configuration_\w+ \w+|torch\.optim\.(?:_?[a-z]\w*) [A-Z]\w+"
)
"""Configs of models, and kinds of optimizers and of schedules, among the arguments of a module."""


class _AnyClass:
    def __contains__(self, _: object) -> bool:
        return True


class _OfTrainers:
    def __contains__(self, name: Any) -> bool:  # noqa: ANN401  # as Container has it
        return name in _OF_TRAINERS or _CONFIGS.fullmatch(" ".join(name)) is not None


ANY_CLASS: Final[Container[tuple[str, str]]] = _AnyClass()
"""For files in which any class is named, such as those of optimizers."""

TRAINERS: Final[Container[tuple[str, str]]] = _OfTrainers()
"""For files of torch.save."""
