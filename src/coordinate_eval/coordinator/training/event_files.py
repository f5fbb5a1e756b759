"""TensorBoard's event files, from where an earlier look ended.

TensorBoard's own reader cannot go on at a saved place, and needs as much memory as a file says. The
format is a sequence of records: eight bytes of length, four of its checksum, the content, four of
its checksum. The content is a protobuf `Event`; only its scalars are read.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MOST_RECORD = 1 << 20
"""Bytes of a record that may hold scalars. Images and graphs are larger, and are passed over."""

_HEAD, _FOOT = 12, 4
_MASK = 0xA282EAD8
_FIXED = {1: 8, 5: 4}


class Scalar(NamedTuple):
    """A value of a tag at a step."""

    step: int
    tag: str
    value: float
    written: float


class Damaged(Exception):
    """The file goes on with something that is no record."""


def scalars(file: BinaryIO, size: int) -> Iterator[tuple[int, list[Scalar]]]:
    """Yield the place after each whole record from here to `size`, with its scalars.

    Raises:
        Damaged: what follows is no record.
    """
    at = file.tell()
    while at + _HEAD + _FOOT <= size:
        head = file.read(_HEAD)
        if len(head) < _HEAD:
            return
        length, checksum = struct.unpack("<QI", head)
        if _masked(head[:8]) != checksum:
            raise Damaged
        end = at + _HEAD + length + _FOOT
        if end > size:
            return  # torn, or still being written
        found: list[Scalar] = []
        if length <= MOST_RECORD:
            content = file.read(length)
            if len(content) < length:
                return
            try:
                found = _event(content)
            except (ValueError, IndexError, struct.error):
                raise Damaged from None
        file.seek(end)
        at = end
        yield at, found


def _event(content: bytes) -> list[Scalar]:
    written, step, found = 0.0, 0, []
    for number, value in _fields(content):
        if number == 1 and isinstance(value, bytes):
            (written,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            found += [each for n, v in _fields(value) if n == 1 and (each := _value(v)) is not None]
    return [Scalar(step, tag, value, written) for tag, value in found]


def _value(content: bytes | int) -> tuple[str, float] | None:
    tag, value = "", None
    for number, part in _fields(content if isinstance(content, bytes) else b""):
        if not isinstance(part, bytes):
            continue
        if number == 1:
            tag = part[:300].decode(errors="replace")
        elif number == 2 and len(part) == 4:
            (value,) = struct.unpack("<f", part)
        elif number == 8:
            value = _tensor(part)
    return None if value is None else (tag, value)


def _tensor(content: bytes) -> float | None:
    """Return the number of a tensor of one; None of any other."""
    form = ""
    for number, part in _fields(content):
        if number == 1 and isinstance(part, int):
            form = {1: "<f", 2: "<d"}.get(part, "")
        elif form and number in (4, 5, 6) and isinstance(part, bytes):
            whole = len(part) == struct.calcsize(form)
            return float(struct.unpack(form, part)[0]) if whole else None
    return None


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of a protobuf's fields.

    Raises:
        ValueError: it is none.
    """
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(content, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(kind)
        if at + size > len(content):
            raise ValueError(size)
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        byte = content[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError(at)


def _masked(content: bytes) -> int:
    """Return TensorFlow's checksum: a CRC-32C, turned by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
