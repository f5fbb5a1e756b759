"""Common parts of all records."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=@,-]{0,199}$")]
"""A name that is a part of file names and of job names."""


class Record(BaseModel):
    """Base of everything that is written. Instances are immutable."""

    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        ser_json_inf_nan="strings",
    )

    def line(self) -> str:
        """Return this record as one line of JSON, with its newline."""
        return self.model_dump_json(exclude_defaults=True) + "\n"


def schema(name: str) -> Any:  # noqa: ANN401  as `Field` does
    """Return the field `schema_` of a record that is a file of its own: `schema` in the file."""
    return Field(default=name, alias="schema")


def absent(default: Any, description: str = "", **limits: Any) -> Any:  # noqa: ANN401
    """Return a field that is left out of files while it has its default.

    So plans, suites and their digests stay as they were before the field was added.
    """
    return Field(
        default=default,
        description=description or None,
        exclude_if=lambda value: value == default,
        **limits,
    )
