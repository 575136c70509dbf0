"""``bestiary plugins``: what is installed, also when some of it is broken."""

import argparse
import sys

from bestiary.plugins import report
from bestiary.plugins.manager import load_plugins


def plugins(arguments: argparse.Namespace) -> int:
    """Print the list; a plugin that failed is a line of it, not an error."""
    found = load_plugins(block=arguments.block_plugin, enforce_required=False)
    if arguments.json:
        sys.stdout.write(report.as_json(found) + "\n")
        return 0
    from rich.console import Console

    Console().print(report.render(found))
    return 0
