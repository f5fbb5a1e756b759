"""The languages of programs: what each needs, and its compiler, made ready for programs.

A row of `LANGUAGES` says into which file a program is written, which commands compile and run it,
and which Debian packages these come from. A program passes if every command ends with status 0
before its time is over. Python is in the table for its limits only: `guest.py` executes it.

Time limits are for compiling and running together. That of Python is the default of the metric
`code_eval`. The others are those of bigcode-evaluation-harness (`LANGUAGE_TO_TIMEOUT` of its
HumanEvalPack).
"""

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.sandbox.confinement import ENVIRONMENT, Level, View, wrapper
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
    """Return the row of a language."""
    if name not in LANGUAGES:
        raise UserError(f"programs in {name!r} cannot be run: known are {', '.join(LANGUAGES)}")
    return LANGUAGES[name]


def missing_packages(names: Iterable[str]) -> list[str]:
    """Return the Debian packages that these languages need and this machine lacks."""
    needs = {path: package for name in names for path, package in language(name).needs.items()}
    return sorted({package for path, package in needs.items() if not _found(path)})


@cache
def _found(pattern: str) -> list[Path]:
    """Return the files and folders of this machine that an absolute path with wildcards names."""
    return sorted(Path("/").glob(pattern.removeprefix("/")))


_SOURCES = Path(__file__).with_name("libraries")
_PREPARE_SECONDS: Final = 1800.0
_PREPARE_BYTES: Final = 2 << 30
_MOST_TOLD = 2000


@dataclass(frozen=True)
class Toolchain:
    """The compiler of a language, with the libraries that were compiled for its programs."""

    language: Language
    version: str
    libraries: Path | None

    @property
    def view(self) -> View:
        """Return what its commands see of this machine."""
        libraries = (self.libraries,) if self.libraries else ()
        return View(read=(*self.language.seen(), *libraries))

    def commands(self, home: str) -> tuple[str, list[list[str]], dict[str, str]]:
        """Return the file, the commands and the environment of a program whose home is given."""
        variables = ENVIRONMENT | {"HOME": home, "TMPDIR": home}
        variables |= self.language.variables(self.libraries)
        return self.language.file, self.language.argvs(self.libraries), variables


class Toolchains:
    """The compilers of this machine at a level of confinement. It is thread-safe.

    What programs of a language may import is compiled when it is first asked for, confined at this
    level, into a folder that is removed with this object or at the end of this process.
    """

    def __init__(self, level: Level) -> None:
        """Prepare nothing yet."""
        self._level = level
        self._lock = threading.Lock()
        self._ready: dict[str, Toolchain] = {}
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def of(self, name: str) -> Toolchain:
        """Return the toolchain of a language.

        Raises:
            UserError: the language is unknown, its packages are not installed, or they do not work.
        """
        with self._lock:
            if name not in self._ready:
                self._ready[name] = self._prepared(name)
            return self._ready[name]

    def _prepared(self, name: str) -> Toolchain:
        found = language(name)
        if missing := missing_packages([name]):
            raise UserError(refusal(missing, found.title))
        version = self._run(found, found.version, View(read=found.seen()), {}).splitlines()[0]
        libraries = None
        if (_SOURCES / name).is_dir():
            folder = tempfile.TemporaryDirectory(prefix="coordinate-eval-libraries-")
            self._folders.append(folder)
            libraries = Path(folder.name).resolve()
            shutil.copytree(_SOURCES / name, libraries, dirs_exist_ok=True)
            libraries.chmod(0o755)  # a program of root has a user id of its own
            if found.prepare:
                view = View(read=found.seen(), write=(libraries,), memory_bytes=_PREPARE_BYTES)
                self._run(found, found.prepare, view, found.variables(libraries), libraries)
        return Toolchain(found, version, libraries)

    def _run(
        self,
        of: Language,
        command: str,
        view: View,
        variables: Mapping[str, str],
        folder: Path | None = None,
    ) -> str:
        """Run a command of a toolchain, and return what it prints."""
        enter = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(folder or "/")]
        try:
            done = subprocess.run(
                [*wrapper(self._level, view), *enter, *shlex.split(command)],
                env=ENVIRONMENT | dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=_PREPARE_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stdout", None) or b"").decode("utf-8", "replace").strip()
            raise UserError(
                f"{of.title} programs cannot be run on {os.uname().nodename}: `{command}` failed: "
                f"{said[-_MOST_TOLD:] or error}. Its Debian packages: "
                f"{' '.join(sorted(set(of.needs.values())))}"
            ) from error
        return done.stdout.decode("utf-8", "replace").strip() or "unknown"


def refusal(missing: list[str], what: str) -> str:
    """Return why programs cannot be run on this machine, and what to install."""
    return (
        f"{what} programs cannot be run on {os.uname().nodename}: on every node that runs metric "
        f"jobs, install what is missing, on Debian by `apt-get install {' '.join(missing)}`"
    )
