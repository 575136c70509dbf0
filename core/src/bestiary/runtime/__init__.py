"""The run: its job process, worker classes, loop and checkpoints."""
