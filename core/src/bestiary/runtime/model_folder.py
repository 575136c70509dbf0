"""The path of a run's model, with the shape of a tiny one spelt out."""

from dataclasses import fields

from bestiary.config.schema import ModelOptions, TinyModelOptions
from bestiary.models.tiny import TinyOptions

TINY = "tiny:"


def model_path(model: ModelOptions) -> str:
    """What :func:`bestiary.models.resolve.resolve_model` takes.

    A tiny model that is built from scratch has all its sizes in the path, so that its cache entry
    is named by them.
    """
    if isinstance(model, TinyModelOptions) and model.path.rstrip() == TINY:
        shape = model.shape()
        values = ((f.name, getattr(shape, f.name)) for f in fields(TinyOptions))
        return TINY + ",".join(f"{name}={value}" for name, value in values)
    return model.path
