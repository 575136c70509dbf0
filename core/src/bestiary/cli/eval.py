"""``bestiary eval``: hands over to the runtime."""

import argparse
from importlib import import_module


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a run or checkpoint; returns the exit status."""
    job = import_module("bestiary.runtime.eval_job")
    status: int = job.main(
        arguments.source,
        arguments.overrides,
        as_json=arguments.json,
        block=arguments.block_plugin,
    )
    return status
