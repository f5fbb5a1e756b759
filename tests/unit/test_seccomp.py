"""The filter of system calls, decided by an interpreter of its instructions."""

import re
import struct
from pathlib import Path

import pytest

from coordinate_eval.evaluators.sandbox.seccomp import LAST, OWNER, compiled, numbers

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOWED, EPERM, ENOMEM, EINVAL, ENOTTY, ENOSYS = "allowed", 1, 12, 22, 25, 38
SUCCESS = 0
"""The call is not made, and succeeds for the program."""
NEGATIVE = 1 << 64


def decide(machine: str, number: int, *arguments: int, architecture: int = 0) -> str | int:
    """What the filter makes of a call: an error's number, or that it is allowed."""
    given = [argument % NEGATIVE for argument in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<iIQ6Q", 0, architecture or MACHINES[machine], 0, *given)
    data = struct.pack("<I", number) + data[4:]
    code = list(struct.iter_unpack("=HBBI", compiled(machine)))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x25:
                at += if_true if accumulator > value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return ALLOWED if value == 0x7FFF0000 else value - 0x50000
            case _:
                raise AssertionError(operation)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


USUAL = {"x86_64": [0, 1, 2, 3, 12, 39, 57, 58, 59, 61, 202, 231, 257, 334, 436, 439, 449],
         "aarch64": [56, 57, 63, 64, 98, 172, 214, 221, 260, 436, 439, 449]}  # fmt: skip
"""Reading, writing, memory, processes, futexes."""

NEVER = {"x86_64": [188, 189, 190, 253, 294, 251, 162, 306, 151, 105, 237, 444, LAST],
         "aarch64": [5, 7, 26, 30, 81, 267, 230, 146, 235, 444, LAST]}  # fmt: skip
"""Attributes, watches, priorities of I/O, flushes, locked pages, user ids, memory policies."""


def test_what_programs_need_is_allowed(machine: str) -> None:
    for number in USUAL[machine]:
        assert decide(machine, number) == ALLOWED, number


def test_what_is_not_allowed_by_name_is_denied(machine: str) -> None:
    known = set(numbers(machine).values())
    assert not known.intersection(NEVER[machine])
    for number in range(LAST + 1):
        if number not in known:
            assert decide(machine, number) == EPERM, number


CALLS: dict[str, list[tuple[tuple[int, ...], str | int]]] = {
    "clone": [((0x3D0F00,), ALLOWED), ((17,), ALLOWED), *(
        ((1 << bit | 17,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30))],
    "clone3": [((), ENOSYS)],
    "kill": [((100, 9), ALLOWED), ((0, 9), ALLOWED), ((-100, 9), ALLOWED),
             ((OWNER, 19), EPERM), ((-OWNER, 9), EPERM), ((-1, 9), EPERM),
             ((OWNER | 1 << 40, 9), EPERM), ((0xFFFFFFFF, 9), EPERM)],
    "tgkill": [((100, 100, 9), ALLOWED), ((OWNER, OWNER, 9), EPERM)],
    "tkill": [((OWNER, 9), EPERM)],
    "rt_sigqueueinfo": [((OWNER, 9), EPERM)],
    "rt_tgsigqueueinfo": [((OWNER, OWNER, 9), EPERM)],
    "pidfd_open": [((100,), ALLOWED), ((OWNER,), EPERM)],
    **{name: [((0, 1), ALLOWED), ((OWNER, 1), EPERM), ((77, 1), EPERM)] for name in (
        "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr")},
    "setpriority": [((0, 0, 5), ALLOWED), ((0, OWNER, 5), EPERM), ((1, 0, 5), EPERM),
                    ((2, 0, 5), EPERM)],
    "flock": [((3, 2), SUCCESS)],
    "prlimit64": [((0, 7), ALLOWED), ((OWNER, 7), EPERM), ((1, 0), EPERM)],
    "prctl": [((1, 9), ALLOWED), ((38, 1), ALLOWED), ((15, 0), ALLOWED), ((4, 0), EPERM),
              ((4, 1 << 32), EPERM), ((4, 1), ALLOWED), *(((option, 2), EINVAL) for option in (
                  0, 8, 22, 22 | 1 << 32, 24, 28, 33, 35, 36, 47, 62, 65, 0x59616D61))],
    "personality": [((0,), ALLOWED), ((0xFFFFFFFF,), ALLOWED), ((0x40000,), EPERM)],
    "socket": [*(((family, kind, protocol), ALLOWED)
                 for family in (1, 2, 10) for kind in (1, 2, 0x80801, 0x80802)
                 for protocol in (0, 6, 17)),
               ((1, 5, 0), ALLOWED), ((1, 0x80005, 0), ALLOWED), ((2, 5, 0), EPERM),
               ((10, 5, 0), EPERM), ((2, 3, 1), EPERM), ((2, 2, 1), EPERM), ((2, 1, 132), EPERM),
               ((2, 1, 262), EPERM),
               *(((family, 2, 0), EPERM) for family in range(46) if family not in (1, 2, 10)),
               *(((family, 3, 0), EPERM) for family in (1, 2, 10, 16, 17)),
               ((1 << 32 | 16, 3, 0), EPERM)],
    "socketpair": [((1, 1, 0), ALLOWED), ((30, 5, 0), EPERM)],
    "setsockopt": [((3, 1, 2), ALLOWED), ((3, 41, 26), ALLOWED), ((3, 6, 8), ALLOWED),
                   *(((3, 1, option), EPERM) for option in (7, 8, 26, 50, 51, 52))],
    "fcntl": [*(((3, command), ALLOWED) for command in (0, 1, 2, 3, 4, 5, 36, 1030)),
              *(((3, command), SUCCESS) for command in (6, 7, 37, 38)),
              *(((3, command), EINVAL) for command in (8, 10, 15, 1024, 1026, 1031, 1033, 1036))],
    "ioctl": [*(((0, command), ALLOWED) for command in (0x5401, 0x5413, 0x541B, 0x5421, 0x5451)),
              *(((3, command), ENOTTY) for command in (
                  0x8901, 0x8902, 0x5412, 0x541C, 0x5423, 0x5402, 0x8914, 0x40086602, 0x40049409)),
              ((3, 1 << 32 | 0x5412), ENOTTY)],
    "mmap": [((0, 1 << 40, 3, 0x22), ALLOWED), ((0, 1 << 40, 1, 0x01), ALLOWED),
             ((0, 16 << 20, 3, 0x21), ALLOWED), ((0, (16 << 20) + 1, 3, 0x21), ENOMEM),
             ((0, 1 << 32, 3, 0x21), ENOMEM), ((0, 1 << 40, 3, 0x23), ENOMEM),
             ((0, 4096, 3, 0x40022), ENOMEM)],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_some_calls_depend_on_their_arguments(machine: str, name: str) -> None:
    for arguments, decision in CALLS[name]:
        assert decide(machine, numbers(machine)[name], *arguments) == decision, arguments


def test_all_others_of_the_table_are_allowed(machine: str) -> None:
    for name in numbers(machine).keys() - CALLS:
        assert decide(machine, numbers(machine)[name]) == ALLOWED, name


def test_what_is_newer_or_foreign_does_not_exist(machine: str) -> None:
    for number in (LAST + 1, 470, 0x40000000, 0x40000000 + 101, 0xFFFFFFFF):
        assert decide(machine, number) == ENOSYS
    for architecture in {0x40000003, 0x40000028, 0x80000016, *MACHINES.values()}:
        if architecture != MACHINES[machine]:
            assert decide(machine, 0, architecture=architecture) == ENOSYS


def test_other_machines_have_no_filter() -> None:
    with pytest.raises(OSError, match="riscv64"):
        compiled("riscv64")


def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the headers are not installed")
    lines = re.findall(
        r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", HEADERS[machine].read_text(), re.MULTILINE
    )
    known = {name: int(number) for name, number in lines}
    for name, number in numbers(machine).items():
        assert known.get(name, number) == number, name
