"""`coordinate-eval config`: every setting, its value, and where it comes from."""

import json
import sys

from coordinate_eval._format import plain
from coordinate_eval.coordinator.cli import output
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.inputs.layers import flatten, load, meaning


def config_command(as_json: common.Json = False, settings_file: common.SettingsFile = None) -> None:
    """Show every setting, its value, and where it comes from."""
    settings, sources = load({}, settings_file)
    values = flatten(settings.model_dump(mode="json"))
    origins = {name: sources.get(name, "default") for name in values}
    if as_json:
        rows = {name: {"value": v, "source": origins[name]} for name, v in values.items()}
        output.write_json(rows)
        return
    console = output.console()
    if not console.is_terminal:
        for name, value in values.items():
            text = json.dumps(value, ensure_ascii=False)
            line = f"{name} = {text}  # ({origins[name]}) {meaning(name)}"
            sys.stdout.write(f"{plain(line)}\n")
        return
    table = output.new_table("setting", "value", "from", "meaning")
    for name, value in values.items():
        cells = (name, json.dumps(value, ensure_ascii=False), origins[name], meaning(name))
        table.add_row(*cells)
    console.print(table)
