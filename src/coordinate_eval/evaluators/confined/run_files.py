"""The responses and answers of a dataset: files of the run, or the copy that scoring reads."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.records import Answer, Response


@dataclass(frozen=True)
class _RunFiles:
    """Some files of a run directory, one after the other."""

    paths: tuple[Path, ...] = ()
    copy: int | None = None
    """A descriptor of the copy, in the process that has it."""

    @property
    def lines(self) -> Iterator[bytes]:
        """Yield the lines, from the first one on."""
        if self.copy is not None:
            path = Path(f"/proc/self/fd/{self.copy}")  # opened anew, it is read from its beginning
            with path.open("rb") as file:
                yield from _files.bounded_lines(file, path)
        for path in self.paths:
            yield from _files.lines(path)

    @contextlib.contextmanager
    def copied(self) -> Iterator[int]:
        """Copy the files into memory, and give a descriptor that nobody can write through.

        An open file of the run would not do: whoever has it can open it again to write.
        """
        copy = os.memfd_create("responses", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            for path in self.paths:
                with _files.open_to_read(path) as file:
                    left = os.fstat(file.fileno()).st_size
                    while left and (sent := os.sendfile(copy, file.fileno(), None, left)):
                        left -= sent
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
            yield copy
        finally:
            os.close(copy)


class ResponseFiles(_RunFiles):
    """The responses in some files, read anew by each iteration."""

    def __iter__(self) -> Iterator[Response]:
        return map(Response.model_validate_json, self.lines)


class AnswerFiles(_RunFiles, Mapping[str, Answer]):
    """The answers in some files, by the question's id. They are read once."""

    @cached_property
    def _answers(self) -> dict[str, Answer]:
        return {answer.id: answer for answer in map(Answer.model_validate_json, self.lines)}

    def __getitem__(self, identifier: str) -> Answer:
        return self._answers[identifier]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)
