"""Engines: what trains a model, and what draws responses from it."""
