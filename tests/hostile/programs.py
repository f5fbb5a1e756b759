"""The corpus: all programs, whatever their family."""

from tests.hostile.corpus import (
    benign,
    files,
    kernel,
    network,
    output,
    processes,
    resources,
    tracing,
    verdicts,
)
from tests.hostile.program import Program

FAMILIES: dict[str, list[Program]] = {
    module.__name__.rpartition(".")[2]: module.PROGRAMS
    for module in (files, network, processes, tracing, kernel, resources, verdicts, output, benign)
}

PROGRAMS = [program for family in FAMILIES.values() for program in family]
