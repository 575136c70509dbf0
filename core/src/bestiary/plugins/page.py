"""The page ``docs/hooks.md``, made from the hook specifications, their events and the registry.

``python -m bestiary.plugins.page docs/hooks.md`` writes it; a test holds the two equal.
"""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

from bestiary.plugins import events, hookspecs
from bestiary.plugins.registry import Registry

_HEAD = f"""# Hooks and registry: reference

Made from the code with `python -m bestiary.plugins.page docs/hooks.md`; version of the hooks:
{hookspecs.API_VERSION}. How plugins work is in [plugins](plugins.md); a first one step by step in
[your first algorithm](tutorials/your_first_algorithm.md).

*Registration* hooks are called in every process that loads plugins: the command line, the run's
driver and each worker. *Decision* and *observation* hooks are called in the driver only. An
observer that raises stops the run with an error that names it, after the other observers were
told. An implementation may take fewer arguments than its specification.
"""


def page() -> str:
    """The whole page as markdown."""
    hooks = [
        function
        for name, function in inspect.getmembers(hookspecs, inspect.isfunction)
        if name.startswith("bestiary_")
    ]
    hooks.sort(key=lambda function: function.__code__.co_firstlineno)
    kinds = [
        cls
        for _, cls in inspect.getmembers(events, inspect.isclass)
        if cls.__module__ == events.__name__ and dataclasses.is_dataclass(cls)
    ]
    kinds.sort(key=lambda cls: inspect.getsourcelines(cls)[1])
    methods = [
        function
        for name, function in inspect.getmembers(Registry, inspect.isfunction)
        if "target" in inspect.signature(function).parameters and not name.startswith("_")
    ]
    methods.sort(key=lambda function: function.__code__.co_firstlineno)
    parts = [_HEAD, "\n## Hooks\n"]
    parts += [_section(hook.__name__, hook, _example(hook)) for hook in hooks]
    parts += ["\n## What hooks are told\n", *(_event(cls) for cls in kinds)]
    parts += ["\n## The registry\n", *(_section(m.__name__, m, "") for m in methods)]
    return "".join(parts)


def _section(name: str, function: Any, example: str) -> str:  # noqa: ANN401 - any function
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
        if p.name != "self"
    ]
    call = f"{name}{inspect.Signature(parameters)}"
    return f"\n### `{name}`\n\n```python\n{call}\n```\n\n{_text(function)}\n{example}"


def _text(thing: Any) -> str:  # noqa: ANN401 - anything with a docstring
    lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
    out = []
    for line in lines:
        if line.strip() in ("Args:", "Returns:", "Raises:"):
            out.append(f"*{line.strip().rstrip(':')}*")
            out.append("")
        elif line.startswith("        "):  # goes on
            out[-1] += " " + line.strip()
        elif line.startswith("    "):
            out.append(f"- {line.strip()}")
        else:
            out.append(line)
    text = "\n".join(out).replace("``", "`")
    return text.replace(":class:`~bestiary.protocols.", "`bestiary.protocols.") + "\n"


def _example(hook: Any) -> str:  # noqa: ANN401 - a function
    (argument, *_) = [*inspect.signature(hook).parameters, ""]
    body = {
        "bestiary_register": 'registry.reward("mine", target="bestiary_mine.reward:Mine")',
        "bestiary_config_packages": 'return ["bestiary_mine.conf"]',
        "bestiary_plan_placement": "return None  # leave it to the chosen placement",
    }.get(hook.__name__, f"print({argument})")
    return f"\n```python\n@hookimpl\ndef {hook.__name__}({argument}):\n    {body}\n```\n"


def _event(cls: type) -> str:
    fields = "\n".join(f"- `{f.name}`: {_plain(f.type)}" for f in dataclasses.fields(cls))
    summary = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    return f"\n### `{cls.__name__}`\n\n{summary}\n\n{fields}\n"


def _plain(annotation: Any) -> str:  # noqa: ANN401 - a type or its text
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"`{text.replace('collections.abc.', '').replace('typing.', '')}`"


def main(argv: list[str]) -> int:
    """Write the page."""
    Path(argv[0]).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
