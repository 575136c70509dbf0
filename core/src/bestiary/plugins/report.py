"""Show which plugins there are: for people as a table, for programs as JSON."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bestiary.plugins.manager import PluginSet

_COLOURS = {"active": "green", "blocked": "yellow", "failed": "red"}


def rows(plugin_set: "PluginSet") -> list[dict[str, Any]]:
    """One row for each installed plugin.

    Its keys are ``name``, ``distribution``, ``version``, ``location``, ``status`` (active,
    blocked or failed), ``reason``, ``hooks``, ``components`` (as ``kind/name``) and
    ``traceback``.
    """
    return plugin_set.report()


def as_json(plugin_set: "PluginSet") -> str:
    """The rows as a JSON list."""
    return json.dumps(rows(plugin_set), indent=2)


def render(plugin_set: "PluginSet") -> "RenderableType":
    """The rows as a table, and under it reasons and notes in full."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text  # a plugin's texts are shown as they are, not as markup

    table = Table()
    for column in ("plugin", "distribution", "status", "offers"):
        table.add_column(column, overflow="fold", no_wrap=column != "offers")
    below = []
    for row in rows(plugin_set):
        hooks = ", ".join(hook.removeprefix("bestiary_") for hook in row["hooks"])
        offers = Text(", ".join(row["components"]))
        if hooks:
            offers.append(f"\nhooks: {hooks}")
        offers.append(f"\n{row['location']}", style="dim")
        colour = _COLOURS[row["status"]]
        table.add_row(
            Text(row["name"]),
            Text(f"{row['distribution']}\n{row['version']}"),
            Text(row["status"], style=colour),
            Text("\n").join(line for line in offers.split() if line),
        )
        if row["reason"]:
            who = f"{row['name']} ({row['distribution']} {row['version']})"
            colour = "yellow" if row["status"] == "active" else colour
            below.append(Text(f"{who} {row['status']}: {row['reason']}", style=colour))
    below.extend(Text(f"note: {note}", style="yellow") for note in plugin_set.notes)
    return Group(table, *below)
