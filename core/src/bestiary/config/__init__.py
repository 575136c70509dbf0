"""Typed configuration: schema, Hydra composition, validation, run folders and manifests."""
