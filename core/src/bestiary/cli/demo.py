"""``bestiary demo``: hands over to the runtime."""

import argparse
from importlib import import_module


def demo(arguments: argparse.Namespace) -> int:
    """Run the demonstration; returns the exit status."""
    status: int = import_module("bestiary.runtime.demo").main(
        arguments.overrides, block=arguments.block_plugin
    )
    return status
