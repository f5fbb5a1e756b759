"""`coordinate-eval checkpoint`: what a folder or file is, and whether it can be scored."""

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from coordinate_eval._format import brief, listed, plural, size
from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import new_table, say, table_console, write_json
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import (
    checkpoint_files,
    config_file,
    finding,
    guard,
    reading,
    remote,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.names import mapping as mappings
from coordinate_eval.coordinator.inputs.checkpoints.names import patterns
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint

SCHEMA = "coordinate-eval/checkpoint@1"

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=weight)\d+$|(?<=bias)\d+$")


_Shown = Annotated[
    Path, typer.Argument(metavar="CKPT", help="A folder, a file, or s3://…, whatever it is.")
]
_CheckIt = Annotated[
    bool,
    option(
        "--check",
        "Compare all tensors with the architecture, and look for NaN. All weights are read.",
    ),
]


@dataclass
class _Report:
    """The facts that are known of a checkpoint."""

    path: str
    format: str | None = None
    step: int | None = None
    files: int = 0
    bytes: int = 0
    parameters: dict[str, int] = field(default_factory=dict)
    """Number of parameters by type."""
    tensors: list[dict[str, Any]] = field(default_factory=list)
    config: str | None = None
    model_type: str | None = None
    tokenizer: list[str] = field(default_factory=list)
    mapping: str | None = None
    """The trainer whose names the tensors have."""
    left_over: dict[str, Any] = field(default_factory=lambda: {"checkpoint": [], "model": []})
    """Names that the mapping has no rule for; and, checked, what the model has besides."""
    checked: dict[str, Any] | None = None
    usable: bool = False
    why: str = ""
    """The reason why it cannot be scored."""


def checkpoint_command(
    ckpt: _Shown,
    config: common.ModelConfig = None,
    tokenizer: common.Tokenizer = None,
    mapping: common.Mapping = None,
    base: common.Base = None,
    check: _CheckIt = False,
    check_against: common.CheckAgainst = None,
    as_json: common.Json = False,
) -> None:
    """Show what a folder or file is: format, tensors, whose names they have, what is missing.

    Without --check no weight is read, and nothing is needed but its headers. Exit status: 0 it can
    be scored; 2 it cannot, and the last line says why.
    """
    report = examine(
        ckpt,
        config=config,
        tokenizer=tokenizer,
        mapping=mapping,
        base=base,
        check=check,
        check_against=check_against,
    )
    if as_json:
        write_json({"schema": SCHEMA, **report.__dict__})
    else:
        _print(report)
    raise typer.Exit(0 if report.usable else 2)


def examine(
    path: Path,
    *,
    config: Path | None = None,
    tokenizer: Path | None = None,
    mapping: Path | None = None,
    base: Path | None = None,
    check: bool = False,
    check_against: Path | None = None,
) -> _Report:
    """Return what can be told of a checkpoint, whether it is one or not."""
    path = remote.located(path)
    report = _Report(str(path), step=step_of(str(path.absolute())))
    stand_ins = {"config": config, "tokenizer": tokenizer}
    found: Checkpoint | None = None
    try:
        found = checkpoints.inspect(path, **stand_ins, mapping=mapping, base=base)
        report.step = checkpoints.trained_step(found)
        checkpoints.check_usable(found)
    except UserError as error:
        report.why = str(error)
    with contextlib.suppress(UserError, OSError):
        if found is not None:  # of an average or adapter, they are those of what it is made of
            files = list(map(Path, found.files))
            beside: Path | None = config_file.file_of(files)
        else:
            beside, files = finding.find_beside(path, **stand_ins)
        report.config = str(beside) if beside else None
        names = {file.name for file in files}
        report.tokenizer = [name for name in checkpoint_files.TOKENIZER_FILES if name in names]
        if beside:
            whole = config_file.read(beside)
            report.model_type = text_config(whole, beside).kind or None
    stored: Mapping[str, Tensor] = {}
    with contextlib.suppress(UserError, OSError):
        if found is not None:
            stored = reading.source(found.model_copy(update={"mapping": None})).tensors
            weights = list(map(remote.located, found.weights or found.all_weights))
            report.format = found.format.value
        else:
            raw = finding.find(path)
            stored, weights, report.format = raw.source.tensors, list(raw.weights), raw.format.value
        report.files, report.bytes = len(weights), sum(file.stat().st_size for file in weights)
    report.tensors = _groups(stored)
    for dtype, shape in stored.values():
        report.parameters[dtype] = report.parameters.get(dtype, 0) + math.prod(shape)
    _add_mapping(report, found, stored, mapping)
    if found is not None and (check or check_against):
        _check(report, found, check_against)
    report.usable = not report.why
    return report


def _groups(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return tensors by names that differ in numbers alone, and by type and shape."""
    groups: dict[tuple[str, Tensor], int] = {}
    for name, tensor in tensors.items():
        key = (_NUMBER.sub("<n>", name), tensor)
        groups[key] = groups.get(key, 0) + 1
    return [
        {"name": name, "count": count, "dtype": tensor.dtype, "shape": list(tensor.shape)}
        for (name, tensor), count in groups.items()
    ]


def _add_mapping(
    report: _Report, found: Checkpoint | None, stored: Mapping[str, Tensor], mapping: Path | None
) -> None:
    if found is not None:
        if found.mapping and found.mapping != mappings.AS_THEY_ARE:
            report.mapping = found.mapping.trainer
        return
    with contextlib.suppress(UserError):
        if mapping:
            own = mappings.read(mapping)
            report.mapping = own.trainer
            rules = own.of(report.model_type or "").rules
            report.left_over["checkpoint"] = list(patterns.match(stored, rules).left_over)
        elif fits := mappings.fits(stored, report.model_type):
            report.mapping = fits[0].mapping.trainer
            report.left_over["checkpoint"] = list(fits[0].left_over)


def _check(report: _Report, found: Checkpoint, check_against: Path | None) -> None:
    """Compare a checkpoint with its architecture, and look at all of its numbers."""
    from coordinate_eval.coordinator.workers.on_node import against

    try:
        if check_against:
            against.read(check_against)  # before all weights are
        opened = reading.source(found)
        differences, why = guard.judge(found, opened)
        report.checked = {"architecture": differences is not None, "compared": None}
        if differences is not None:
            report.left_over = {
                "checkpoint": list(differences.unknown),
                "model": list(differences.missing),
            }
        if why:
            raise UserError(why)
        guard.check_left_out(found, opened)
        guard.check_finite(found.path, guard.not_finite(opened))
        if check_against:
            compared = against.check(found, check_against)
            report.checked["compared"] = compared._asdict()
    except UserError as error:
        report.why = str(error)


def _print(report: _Report) -> None:
    console = table_console()
    rows = [
        ("format", report.format or "none that can be read"),
        ("step", "" if report.step is None else f"{report.step:,}"),
        ("files", f"{report.files:,} of weights, {size(report.bytes)}" if report.files else ""),
        ("parameters", ", ".join(f"{n:,} {dtype}" for dtype, n in report.parameters.items())),
    ]
    if report.format:
        rows += [
            ("config", ", ".join(filter(None, (report.config or "none", report.model_type)))),
            ("tokenizer", ", ".join(report.tokenizer) or "none"),
            ("mapping", report.mapping or "none: names are Hugging Face's, or unknown"),
        ]
    for name, value in rows:
        if value:
            console.print(f"[bold]{name}[/bold]  {escape(value)}", highlight=False)
    if report.tensors:
        table = new_table("tensors", "type", "shape", ">number")
        for group in report.tensors:
            shape = " × ".join(f"{n:,}" for n in group["shape"])
            table.add_row(brief(group["name"]), group["dtype"], shape, f"{group['count']:,}")
        console.print(table)
    for what, names in (
        ("that the model has not, or the mapping no rule for", report.left_over["checkpoint"]),
        ("of the model missing", report.left_over["model"]),
    ):
        if names:
            console.print(
                f"{plural(len(names), 'tensor')} {what}: {escape(listed([*map(brief, names)]))}"
            )
    if report.checked and not report.why:
        known = report.checked["architecture"]
        say(
            "each tensor of the architecture is there once, with its shape, and all are finite"
            if known
            else "all numbers are finite; transformers knows no architecture for this config"
        )
        if compared := report.checked["compared"]:
            say(
                f"log-likelihoods of {compared['tokens']:,} tokens are those of the trainer: the "
                f"largest difference is {compared['largest']:.2g}, and the mean "
                f"{compared['mean']:.2g}"
            )
    say(report.why or f"{report.path} can be scored")
