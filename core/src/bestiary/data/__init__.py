"""Prompts: files, splits, order, and the source that hands them out."""
