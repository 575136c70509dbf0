"""What options classes say about themselves, for ``--info`` and help texts.

The string under a field is its documentation; it is read from the source with ``ast``.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

from bestiary.config.catalog import Catalog, Choice
from bestiary.config.plain import to_plain
from bestiary.config.schema import MANY, RunConfig
from bestiary.config.typed import describe, hints_of
from bestiary.errors import BestiaryError


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """One option.

    Args:
        name: of the field.
        wanted: its type, in words.
        default: its default as on the command line; ``required`` where there is none.
        doc: what the string under it says.
    """

    name: str
    wanted: str
    default: str
    doc: str


def field_docs(cls: type) -> dict[str, str]:
    """The strings under the fields of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            found.update(_own_docs(base))
    return found


def _own_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # no source, as in a zip or a notebook
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for statement, following in pairwise(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = following.value.value
            if isinstance(text, str):
                found[statement.target.id] = " ".join(text.split())
    return found


def describe_fields(cls: type, preset: dict[str, Any] | None = None) -> list[FieldDoc]:
    """The options of a dataclass with types, defaults and documentation."""
    hints, docs = hints_of(cls), field_docs(cls)
    found = []
    for field in fields(cls):
        if not field.init:
            continue
        default: object = "required"
        if preset and field.name in preset:
            default = preset[field.name]
        elif field.default is not MISSING:
            default = to_plain(field.default)
        elif field.default_factory is not MISSING:
            default = to_plain(field.default_factory())
        wanted = describe(hints[field.name])
        found.append(FieldDoc(field.name, wanted, _word(default), docs.get(field.name, "")))
    return found


def _word(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_word(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_word(item)}" for key, item in value.items()) + "}"
    return str(value) if value != "" else "''"


def summary(cls: type) -> str:
    """First line of a class's documentation; empty where it wrote none."""
    text = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    line = " ".join(text.split())
    return "" if line.startswith(f"{cls.__name__}(") else line


# --------------------------------------------------------------------------- pages


def info(catalog: Catalog, topic: str = "") -> str:
    """A page for people.

    Args:
        catalog: what there is.
        topic: empty for the overview, ``run`` for the run's own settings, ``group`` for its
            options, or ``group=option`` for the options of one choice.

    Raises:
        UserError: if there is no such topic.
    """
    from bestiary.config.suggest import did_you_mean, listing
    from bestiary.errors import ConfigError

    group, equals, name = topic.partition("=")
    if not topic:
        return "\n".join(_overview(catalog))
    if topic == "run":
        return "\n".join(["Settings of a run:", "", *_fields(RunConfig, "", {})])
    if group not in catalog.groups:
        raise ConfigError(
            f"--info {topic}: there is no group '{group}'{did_you_mean(group, catalog.groups)}",
            hint=f"groups: run, {listing(catalog.groups)}",
        )
    if equals:
        return "\n".join(_choice_page(catalog.choice(group, name)))
    return "\n".join(_group_page(catalog, group))


def _overview(catalog: Catalog) -> Iterator[str]:
    yield "Groups and their options; choose with GROUP=NAME (bestiary plugins: whose they are):"
    yield ""
    for group in catalog.groups:
        many = " (any number: tracker=[a,b])" if group == MANY else ""
        yield f"{group}{many}"
        for choice in catalog.choices(group):
            yield f"  {choice.name:<22} {_in_short(choice)}".rstrip()
        yield ""
    for folder, names in catalog.files.items():
        yield f"files, chosen with +{folder}=NAME"
        yield from (f"  {name}" for name in names)
        yield ""
    yield "More: --info run, --info GROUP, --info GROUP=NAME"


def _in_short(choice: Choice) -> str:
    """The beginning of what a choice says of itself, or why it cannot be used."""
    try:
        text = choice.doc or summary(choice.options_class())
    except BestiaryError as error:  # one broken plugin must not hide the others
        text = f"cannot be used: {error.message} [{choice.owner}]"
    text = text or f"({choice.owner.distribution} {choice.owner.version})"
    return textwrap.shorten(text, 90, placeholder=" …")


def _group_page(catalog: Catalog, group: str) -> Iterator[str]:
    yield f"Options of the group {group}:"
    for choice in catalog.choices(group):
        yield ""
        try:
            yield from _choice_page(choice)
        except BestiaryError as error:  # one broken plugin must not hide the others
            yield f"{choice}  ({choice.owner})"
            yield f"  cannot be used: {error}"


def _choice_page(choice: Choice) -> list[str]:
    cls = choice.options_class()
    lines = [f"{choice}  ({choice.owner})"]
    text = choice.doc or summary(cls)
    if text:
        lines += [f"  {text}"]
    components = getattr(cls, "components", None)
    if components:
        lines += ["  uses " + " ".join(f"{g}={n}" for g, n in components.items())]
    key = f"{choice.group}.{choice.name}" if choice.group == MANY else choice.group
    return lines + _fields(cls, f"{key}.", dict(choice.preset))


def _fields(cls: type, prefix: str, preset: dict[str, Any]) -> list[str]:
    lines = []
    hints = hints_of(cls)
    for field in describe_fields(cls, preset):
        hint = hints[field.name]
        if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
            lines += _fields(hint, f"{prefix}{field.name}.", {})
            continue
        lines.append(f"  {prefix}{field.name}={field.default}   {field.wanted}")
        lines += textwrap.wrap(field.doc, 96, initial_indent="      ", subsequent_indent="      ")
    return lines
