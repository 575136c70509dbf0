"""Evaluation on held-out problems."""
