"""The compilers of this machine, made ready for programs."""

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.sandbox.confinement import ENVIRONMENT, Level, View, wrapper
from coordinate_eval.evaluators.sandbox.languages import Language, language, missing_packages

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
        """Run a command of a toolchain, and return what it prints.

        Raises:
            UserError: the command fails.
        """
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
