"""Pages of the documentation that are made from other sources; a hook of mkdocs.

`reference/commands.md` comes from the command line's own parser, `reference/settings.md` from the
model of the settings: neither repeats by hand what the code says. CONTRIBUTING.md
and CHANGELOG.md, which GitHub wants in the root, become pages too.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from coordinate_eval.coordinator.cli import app as command_line
from coordinate_eval.coordinator.cli import process
from coordinate_eval.coordinator.inputs import layers, settings
from coordinate_eval.records import Record

ROOT = Path(__file__).parents[1]
SOURCES = "https://github.com/coordinate-eval/coordinate-eval/blob/main/"
FROM_ROOT = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 - mkdocs has no types here
    """Add the pages; mkdocs calls this before it reads any."""
    from mkdocs.structure.files import File

    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401 - as above
    """Return a page whose links into the root of the repository work in the site too."""
    if "/" in page.file.src_uri:
        return markdown
    return re.sub(r"\]\(\.\./([^)\s]+)\)", lambda match: f"]({_target(match[1])})", markdown)


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path in the site."""
    made = {"reference/commands.md": commands(), "reference/settings.md": settings_page()}
    for name, source in FROM_ROOT.items():
        made[name] = _from_root((ROOT / source).read_text())
    return made


def commands() -> str:
    """Return the page of all commands with their arguments and options."""
    top: Any = typer.main.get_command(command_line.app)
    lines = ["# Commands", "", _paragraphs(top.help), ""]
    for path, command in _walk(top, "coordinate-eval"):
        pieces = command.collect_usage_pieces(command.make_context(path, [], **_LENIENT))
        usage = " ".join(piece.strip("{}").upper() for piece in pieces)
        lines += [f"## `{path}`", "", _paragraphs(command.help), ""]
        lines += ["```sh", f"{path} {usage}", "```", ""]
        lines += _parameters(command)
    status = re.search(r"^Exit status: (.*?)\n\n|^Exit status: (.*)\Z", _doc(), re.S | re.M)
    if status:
        lines += ["## Exit status", "", " ".join((status[1] or status[2]).split()), ""]
    return "\n".join(lines)


_LENIENT: dict[str, Any] = {"resilient_parsing": True}


def _doc() -> str:
    return (process.__doc__ or "").strip()


def _walk(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own types
    """Yield every command that is not hidden, with its path."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _walk(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _parameters(command: Any) -> list[str]:  # noqa: ANN401 - typer's own type
    """Return a table for each group of options."""
    panels: dict[str, list[str]] = {}
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        title = getattr(each, "rich_help_panel", None) or (
            "Arguments" if each.param_type_name == "argument" else "Options"
        )
        default = each.show_default if isinstance(each.show_default, str) else each.default
        names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
        if each.param_type_name == "argument":
            names = f"`{(each.metavar or each.name).upper()}`"
        shown = "" if default in (None, False) or callable(default) else _cell(str(default))
        panels.setdefault(title, []).append(f"| {names} | {shown} | {_cell(each.help or '')} |")
    lines = []
    for title, rows in panels.items():
        lines += [f"| {title} | default | meaning |", "|---|---|---|", *rows, ""]
    return lines


def settings_page() -> str:
    """Return the page of all settings with their variables, defaults, bounds and meanings."""
    lines = [
        "# Settings",
        "",
        "Later ones win: the default, the settings file, the environment, the command line. The "
        "file is the one given with `--settings`, else the one that "
        f"`{layers.FILE_VARIABLE}` names, else `~/.config/coordinate-eval/config.toml`. In the "
        "environment, lists and tables are JSON. `coordinate-eval config` shows what counts now, "
        "and where each value comes from.",
        "",
    ]
    top = {n: f for n, f in settings.Settings.model_fields.items() if not _section(f)}
    sections = {n: _section(f) for n, f in settings.Settings.model_fields.items() if _section(f)}
    lines += ["## Top level", "", *_rows("", top)]
    for name, model in sections.items():
        assert model is not None
        lines += [f"## `[{name}]`", "", _paragraphs(model.__doc__)]
        lines += ["", *_rows(f"{name}.", dict(model.model_fields))]
    return "\n".join(lines)


def _section(field: Any) -> type[Record] | None:  # noqa: ANN401 - pydantic's FieldInfo
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Record) else None


def _rows(prefix: str, fields: dict[str, Any]) -> list[str]:
    rows = ["| setting | variable | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        variable = layers.PREFIX + (prefix + name).replace(".", "_").upper()
        value = field.get_default(call_default_factory=True)
        default = json.dumps(value).replace(str(Path.home()), "~")
        bounds = ", ".join(
            f"{sign} {getattr(rule, key):,}"
            for rule in field.metadata
            for key, sign in _BOUNDS.items()
            if getattr(rule, key, None) is not None
        )
        meaning = _cell(field.description or "") + (f" ({bounds})" if bounds else "")
        shown = "" if value is None else f"`{default}`"
        rows.append(f"| `{name}` | `{variable}` | {shown} | {meaning} |")
    return [*rows, ""]


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _from_root(text: str) -> str:
    """Return a file of the root with its links as they are in the site."""
    relative = r"\]\((?![a-z]+:|#)([^)\s]+)\)"
    return re.sub(relative, lambda match: f"]({_target(match[1])})", text)


def _target(path: str) -> str:
    """Return the link from a top-level page of the site to a path of the repository."""
    pages_of_root = {source: page for page, source in FROM_ROOT.items()}
    if path in pages_of_root:
        return pages_of_root[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else SOURCES + path
