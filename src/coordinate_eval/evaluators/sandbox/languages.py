"""The languages of programs, and what each needs: a table.

A row says into which file a program is written, which commands compile and run it there, and which
Debian packages these come from. A program passes if every command ends with status 0 before the
program's time is over. Python is in the table for its limits only: `guest.py` executes it without
a command.

Time limits are for compiling and running together. That of Python is the default of the metric
`code_eval`, the others are those of bigcode-evaluation-harness (`LANGUAGE_TO_TIMEOUT` of its
HumanEvalPack).
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from coordinate_eval.errors import UserError
from coordinate_eval.records import PYTHON

_LIBRARIES = "{libraries}"


@dataclass(frozen=True)
class Language:
    """A language: how its programs are compiled and run.

    In commands and in `environment`, `{libraries}` is a copy of the language's folder in
    `libraries/`, where `prepare` has compiled what programs may import. All commands have their
    full path.
    """

    title: str
    timeout_seconds: float
    cpu_seconds: float
    """CPU time of a usual program with its compilation, on one core of today."""
    file: str = ""
    commands: tuple[str, ...] = ()
    version: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    """The Debian package of each file that must exist. A path may have wildcards."""
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    """Files below /etc that its commands read, with wildcards."""
    prepare: str = ""
    """The command that compiles, once for many programs, what these may import."""

    def argvs(self, libraries: Path | None) -> list[list[str]]:
        """Return the commands that compile and run a program."""
        return [shlex.split(_at(command, libraries)) for command in self.commands]

    def variables(self, libraries: Path | None) -> dict[str, str]:
        """Return the environment of these commands."""
        return {name: _at(value, libraries) for name, value in self.environment.items()}

    def seen(self) -> tuple[Path, ...]:
        """Return the settings that exist here."""
        return tuple(_found(self.settings)) if self.settings else ()


def _at(text: str, libraries: Path | None) -> str:
    return text.replace(_LIBRARIES, str(libraries or ""))


# One core and little memory, whatever the node has: a virtual machine sizes itself by the node.
_JAVA = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=2 -Xmx1g "
    "-XX:CompressedClassSpaceSize=256m"
)
_JAR = "/usr/share/java/javatuples.jar"
_CRATES = "/usr/share/cargo/registry"

LANGUAGES: Final[Mapping[str, Language]] = {
    PYTHON: Language(title="Python", timeout_seconds=3.0, cpu_seconds=2.0),
    "cpp": Language(
        title="C++",
        timeout_seconds=60.0,
        cpu_seconds=1.5,
        file="program.cpp",
        commands=(
            "/usr/bin/g++ -std=c++17 -o program program.cpp -Wl,--as-needed -lcrypto",
            "./program",
        ),
        version="/usr/bin/g++ --version",
        needs={
            "/usr/bin/g++": "g++",
            "/usr/include/boost/any.hpp": "libboost-dev",
            "/usr/include/openssl/md5.h": "libssl-dev",
        },
    ),
    "go": Language(
        title="Go",
        timeout_seconds=20.0,
        cpu_seconds=1.5,
        file="program_test.go",
        commands=("/usr/bin/go test -timeout=20s program_test.go",),
        version="/usr/bin/go version",
        needs={
            "/usr/bin/go": "golang-go",
            "/usr/share/gocode/src/github.com/stretchr/testify/assert": (
                "golang-github-stretchr-testify-dev"
            ),
        },
        environment={
            "GO111MODULE": "off",
            "GOPATH": "/usr/share/gocode",
            "GOCACHE": f"{_LIBRARIES}/cache",
            "GOFLAGS": "-p=1",
            "GOMAXPROCS": "2",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
        },
        prepare="/usr/bin/go test libraries_test.go",
    ),
    "java": Language(
        title="Java",
        timeout_seconds=10.0,
        cpu_seconds=1.5,
        file="Main.java",
        commands=(
            f"/usr/bin/javac -J{_JAVA.replace(' ', ' -J')} -proc:none -encoding UTF-8 "
            f"-cp {_JAR} Main.java",
            f"/usr/bin/java {_JAVA} -cp .:{_JAR} Main",
        ),
        version="/usr/bin/javac -version",
        needs={
            "/usr/bin/javac": "default-jdk-headless",
            "/usr/bin/java": "default-jdk-headless",
            _JAR: "libjavatuples-java",
        },
        settings="/etc/java*",
    ),
    "js": Language(
        title="JavaScript",
        timeout_seconds=10.0,
        cpu_seconds=0.2,
        file="program.js",
        commands=("/usr/bin/node program.js",),
        version="/usr/bin/node --version",
        needs={"/usr/bin/node": "nodejs"},
        environment={"NODE_PATH": _LIBRARIES},
    ),
    "rust": Language(
        title="Rust",
        timeout_seconds=300.0,
        cpu_seconds=1.5,
        file="program.rs",
        commands=(
            "/usr/bin/rustc --edition=2021 --test --cap-lints=allow -C codegen-units=1 "
            f"-C strip=debuginfo -o program -L {_LIBRARIES}/target/debug/deps "
            f"--extern md5 --extern regex --extern rand={_LIBRARIES}/target/debug/librand.rlib "
            "program.rs",
            "./program",
        ),
        version="/usr/bin/rustc --version",
        needs={
            "/usr/bin/rustc": "rustc",
            "/usr/bin/cargo": "cargo",
            f"{_CRATES}/md5-0.7*": "librust-md5-dev",
            f"{_CRATES}/rand-0.8*": "librust-rand-dev",
            f"{_CRATES}/regex-1*": "librust-regex-dev",
        },
        environment={
            "CARGO_HOME": f"{_LIBRARIES}/cargo",
            "CARGO_BUILD_JOBS": "1",
            "RUST_TEST_THREADS": "1",
        },
        prepare=(
            "/usr/bin/cargo build --offline "
            "--config 'source.crates-io.replace-with=\"debian\"' "
            f"--config 'source.debian.directory=\"{_CRATES}\"'"
        ),
    ),
}
"""All languages by the names that HumanEval-X gives them."""


def language(name: str) -> Language:
    """Return the row of a language.

    Raises:
        UserError: there is none of this name.
    """
    if name not in LANGUAGES:
        raise UserError(f"programs in {name!r} cannot be run: known are {', '.join(LANGUAGES)}")
    return LANGUAGES[name]


def missing_packages(names: Iterable[str]) -> list[str]:
    """Return the Debian packages that these languages need and this machine lacks.

    Raises:
        UserError: a language is unknown.
    """
    needs = {path: package for name in names for path, package in language(name).needs.items()}
    return sorted({package for path, package in needs.items() if not _found(path)})


@cache
def _found(pattern: str) -> list[Path]:
    """Return the files and folders of this machine that an absolute path with wildcards names."""
    return sorted(Path("/").glob(pattern.removeprefix("/")))
