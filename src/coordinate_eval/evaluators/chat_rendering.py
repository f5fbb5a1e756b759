"""Render a chat template in a process of its own, which its limits end: a template is a program.

`python -m coordinate_eval.evaluators.chat_rendering` reads a template and conversations from its
standard input, and writes what became of each conversation. It imports little, so that it takes a
fifth of a second. Its environment is that of transformers: a sandbox of Jinja's.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS: Final = 10
"""CPU time of a process that renders. A template takes milliseconds."""

MEMORY_BYTES: Final = 1 << 30
"""Its address space."""

WALL_SECONDS: Final = 120.0
"""Time to wait for it, on a machine with much else to do."""

_MOST_WORDS: Final = 300
_END: Final = 200

Conversation = Sequence[Mapping[str, str]]


class Rendered(NamedTuple):
    """The rendering of a conversation."""

    problem: str = ""
    """The reason for which it is not rendered, or is of no use; empty if all is well."""
    lacks: str = ""
    """The role of the first message whose text is lacking, where others are there."""
    end: str = ""
    """The last characters."""


def render(
    template: str, tokens: Mapping[str, str], conversations: Sequence[Conversation]
) -> list[Rendered]:
    """Render conversations, each with the beginning of the next answer, in another process."""
    limits = {"cpu_seconds": CPU_SECONDS, "memory_bytes": MEMORY_BYTES}
    given = json.dumps(
        {"template": template, "tokens": tokens, "conversations": conversations, **limits}
    )
    command = [sys.executable, "-P", "-m", "coordinate_eval.evaluators.chat_rendering"]
    try:
        done = subprocess.run(
            command, input=given.encode(), capture_output=True, timeout=WALL_SECONDS, check=False
        )
        made = [Rendered(**each) for each in json.loads(done.stdout)]
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        made = []
    if len(made) != len(conversations):
        why = f"does not come to an end within {CPU_SECONDS} seconds and {MEMORY_BYTES >> 30} GiB"
        return [Rendered(why)] * len(conversations)
    return made


def main() -> None:
    """Render what is on the standard input, within limits."""
    given = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (given["cpu_seconds"],) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (given["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    made = [
        _rendered(given["template"], given["tokens"], conversation)
        for conversation in given["conversations"]
    ]
    json.dump([each._asdict() for each in made], sys.stdout)


def _rendered(template: str, tokens: Mapping[str, str], conversation: Conversation) -> Rendered:
    try:
        made = (
            _environment()
            .from_string(template)
            .render(
                messages=conversation,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **tokens,
            )
        )
    except TemplateSyntaxError as error:
        return Rendered(f"does not compile: line {error.lineno}: {_brief(error.message)}")
    except MemoryError:
        return Rendered(f"needs more than {MEMORY_BYTES >> 30} GiB of memory")
    except TemplateError as error:
        return Rendered(f"refuses a {_roles(conversation)}: {_brief(error)}")
    except Exception as error:  # a template calls methods of values
        return Rendered(f"fails on a {_roles(conversation)}: {_brief(error)}")
    if not made.strip():
        return Rendered("renders nothing")
    for message in conversation:
        if message["content"].casefold() not in made.casefold():
            return Rendered("", message["role"], made[-_END:])
    return Rendered(end=made[-_END:])


def _roles(conversation: Conversation) -> str:
    return " and ".join(f"{message['role']} message" for message in conversation)


def _brief(error: object) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"


class _Generation(Extension):
    """The block `{% generation %}`, with which transformers marks what a model has said."""

    tags = {"generation"}  # noqa: RUF012  as its class has it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the statements within the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Return the environment in which transformers renders templates."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    found.filters["tojson"] = _to_json
    found.globals["raise_exception"] = _raise
    found.globals["strftime_now"] = datetime.now().strftime
    return found


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: ANN401
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: object) -> None:
    raise TemplateError(str(message))


if __name__ == "__main__":
    main()
