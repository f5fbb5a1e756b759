"""The header of a safetensors file: types and shapes of tensors, without reading one."""

import json
import os
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from coordinate_eval import _format
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.errors import UserError

MOST_HEADER_BYTES = 32 << 20
"""Of one file: 200,000 tensors. The format allows 100 MB, which take 1 GB when they are read."""

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


class Tensor(NamedTuple):
    """A tensor of a file, by its header."""

    dtype: str
    """Such as `bfloat16`."""
    shape: tuple[int, ...]


def read(file: Path) -> dict[str, Tensor]:
    """Return the type and the shape of each tensor.

    Raises:
        UserError: The file is torn, not of this format, or its header is too large.
    """
    # Imported here: planning from a cluster file reads no checkpoint's headers.
    from safetensors import SafetensorError, safe_open

    with checkpoint_files.opened(file, weights=True) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if MOST_HEADER_BYTES < length < opened.seek(0, os.SEEK_END):
            raise UserError(
                f"{file} has a header of {_format.size(length)}, more than the "
                f"{_format.size(MOST_HEADER_BYTES)} that are read. Save it in several files"
            )
        try:
            with safe_open(checkpoint_files.open_path(opened), framework="numpy") as tensors:
                return {name: _described(tensors, name) for name in tensors.keys()}  # noqa: SIM118
        except (SafetensorError, MemoryError) as error:  # it is larger than any memory can map
            raise UserError(
                f"{file} is not whole: {_sizes(opened) or _format.brief(error)}. If it is being "
                "written, try again afterwards; else copy or save it again"
            ) from error


def _sizes(opened: FileIO) -> str:
    """Return how much of a file that was cut is there, empty if its header does not tell."""
    there = opened.seek(0, os.SEEK_END)
    opened.seek(0)
    length = int.from_bytes(opened.read(8), "little")
    if not 0 < length <= min(MOST_HEADER_BYTES, there):
        return ""
    try:
        tensors = json.loads(opened.read(length)).values()
        ends = [each["data_offsets"][1] for each in tensors if "data_offsets" in each]
        promised = 8 + length + max(ends)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    if type(promised) is not int or not there < promised < 1 << 63:
        return ""
    return f"it has {there:,} of {promised:,} bytes"


def _described(tensors: Any, name: str) -> Tensor:  # noqa: ANN401  # it has no types
    part = tensors.get_slice(name)
    dtype = part.get_dtype()
    return Tensor(_DTYPES.get(dtype, dtype.lower()), tuple(part.get_shape()))
