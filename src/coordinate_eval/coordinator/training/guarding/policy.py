"""The policy of a guard: what a user may know about a training that no log tells."""

import shlex
import string
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coordinate_eval import _format, _user_files
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern
from coordinate_eval.errors import UserError

PLACES = ("checkpoint", "skip", "attempt")
"""The names in braces that `arguments` may have."""


class Policy(BaseModel):
    """`guard.toml`. Every key has a default, and a guard without a policy uses all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    last_step: int | None = Field(
        default=None, ge=1, description="number of the last step; before it, exit 0 is no success"
    )
    done_file: str = Field(
        default="", description="file that the training writes when it is complete"
    )
    logs: tuple[str, ...] = Field(
        default=(),
        description="more logs, JSON lines and TensorBoard folders than the job's own output: "
        "paths or patterns, from the folder in which the guard was started",
    )
    patterns: str = Field(
        default="", description="YAML file that says how the training reports its steps"
    )
    pattern: str | None = Field(
        default=None, description="names of checkpoints: 'step-{step}', 'iter_{step}/hf'"
    )
    arguments: str = Field(
        default="",
        description="what the script gets: '--load {checkpoint} --skip {skip}'",
    )
    silent_steps: float = Field(
        default=50.0, gt=1, description="a training hangs that is silent for as long as so many"
    )
    silent_seconds: float = Field(
        default=600.0, gt=0, description="it never hangs before it was silent for this time"
    )
    first_step_seconds: float = Field(
        default=3600.0, gt=0, description="longest silence before its first step"
    )
    slow: Literal["tell", "restart"] = Field(
        default="tell", description="what follows when the throughput fell by a third"
    )
    slow_seconds: float = Field(
        default=900.0, gt=0, description="time for which the throughput has to be so low"
    )
    retries: int = Field(
        default=5, ge=0, description="restarts in a row that save no later step, before it stops"
    )
    restarts_per_day: int = Field(
        default=24, ge=1, description="restarts within a day that are not the scheduler's wish"
    )
    pause_seconds: float = Field(
        default=60.0, ge=0, description="pause before a restart that may meet the same; it doubles"
    )
    test_nodes: bool = Field(
        default=True, description="test the nodes in pairs after hardware and network failures"
    )
    drain: bool = Field(default=False, description="drain bad nodes, as an administrator may")
    nodes: tuple[int, ...] = Field(
        default=(), description="numbers of nodes, the first one preferred: [4, 3]"
    )
    start_seconds: float = Field(
        default=3600.0, gt=0, description="wait for so many nodes, before fewer are asked for"
    )
    most_steps_back: int = Field(
        default=10_000, ge=1, description="a rollback goes no further back than so many steps"
    )
    suite: str = Field(
        default="",
        description="before a rollback, compare checkpoints by first signals of this suite",
    )
    command: tuple[str, ...] = Field(
        default=(), description="program that is told of each incident, by JSON on its stdin"
    )
    webhook: str = Field(
        default="", pattern=r"^(https?://\S+)?$", description="address that gets the same JSON"
    )

    @field_validator("nodes")
    @classmethod
    def _falling(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if any(count < 1 for count in counts) or list(counts) != sorted(set(counts), reverse=True):
            raise ValueError("must be numbers of nodes that fall, such as [4, 3]")
        return counts

    @field_validator("pattern")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        try:
            Pattern(text)
        except UserError as error:
            raise ValueError(str(error).removeprefix("--pattern ")) from error
        if text is not None and "{step}" not in text:
            raise ValueError("has no {step}: a guard begins from the newest step")
        return text

    @field_validator("arguments")
    @classmethod
    def _template(cls, text: str) -> str:
        try:
            words = shlex.split(text)
            names = {name for word in words for _, name, _, _ in string.Formatter().parse(word)}
        except ValueError as error:
            raise ValueError(f"cannot be read: {error}") from error
        if unknown := sorted(names - {None, *PLACES}, key=str):
            raise ValueError(
                f"has {{{unknown[0]}}}, which stands for nothing: there are "
                + ", ".join(f"{{{name}}}" for name in PLACES)
            )
        return text

    def words(self, checkpoint: str, skip: str, attempt: str) -> list[str]:
        """Return the arguments of the script.

        A word whose value is empty is left out, with the option before it: a first start loads
        nothing.
        """
        values = {"checkpoint": checkpoint, "skip": skip, "attempt": attempt}
        made: list[str] = []
        option = False
        for word in shlex.split(self.arguments):
            names = {name for _, name, _, _ in string.Formatter().parse(word) if name}
            if any(not values[name] for name in names):
                if option and "=" not in word:
                    made.pop()
                option = False
                continue
            made.append(word.format(**values))
            option = word.startswith("-") and not names and "=" not in word
        return made


def read_policy(path: Path | None) -> Policy:
    """Return the policy in a file; the default one without a file.

    Raises:
        UserError: the file is missing or malformed; names the key.
    """
    if path is None:
        return Policy()
    try:
        given = tomllib.loads(_user_files.read_text(path, "policy"))
        return Policy.model_validate(given)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"policy {path} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = _format.plain(".".join(map(str, first["loc"])))
        if first["type"] == "extra_forbidden":
            known = ", ".join(Policy.model_fields)
            raise UserError(f"policy {path}: {key} is no key; there are {known}") from error
        raise UserError(f"policy {path}: {key}: {_format.problem(error)}") from error
