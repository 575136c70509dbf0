"""Who scores: the scorers that a task declares, and files that users name."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bestiary.config.catalog import Catalog
from bestiary.config.suggest import listing
from bestiary.config.validate import roles_of
from bestiary.errors import ConfigError, boundary

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan


def resolve_scorers(plan: "RunPlan", catalog: Catalog) -> "RunPlan":
    """Replace ``reward=task`` and ``cost=task`` by what the task declares.

    Raises:
        ConfigError: if the task declares none and the algorithm has a role that needs it.
    """
    scored = [role for role in roles_of(plan, catalog) if role.kind == "score" and not role.scorer]
    for group in ("reward", "cost"):
        if plan.choices[group] != "task":
            continue
        if group == "cost" and not any(role.name == "cost" for role in scored):
            continue
        name = _declared(plan, catalog, group)
        if name:
            plan = _with_scorer(plan, catalog, group, name)
        elif any(group == ("cost" if role.name == "cost" else "reward") for role in scored):
            task = catalog.choice("task", plan.choices["task"])
            raise ConfigError(
                f"{task} declares no {group} of its own",
                hint=f"add {group}=NAME; options: {listing(catalog.described(group))}",
                owner=task.owner,
            )
    return plan


def check_reward_files(plan: "RunPlan") -> None:
    """Refuse a reward in a file that is not there, before anything has started.

    Raises:
        ConfigError: naming the file and the folder that was looked in.
    """
    paths = {group: getattr(plan.options[group], "path", "") for group in ("reward", "cost")}
    chosen = {group: path for group, path in paths.items() if plan.choices[group] == "custom"}
    named = {f"role {role.name}": role.scorer for role in plan.roles if ":" in role.scorer}
    for where, path in {**chosen, **named}.items():
        file = path.rpartition(":")[0]
        if not path:
            raise ConfigError(
                f"{where}=custom without a function",
                hint=f"add {where}.path=file.py:function or package.module:function",
            )
        if file.endswith(".py") and not Path(file).expanduser().is_file():
            raise ConfigError(
                f"{where}: the file {file!r} is not there",
                hint=f"it was looked for from {Path.cwd()}",
            )


def _with_scorer(plan: "RunPlan", catalog: Catalog, group: str, name: str) -> "RunPlan":
    choice = catalog.choice(group, name)
    with boundary(choice.owner, f"making the default options of {choice}", ConfigError):
        options = choice.options_class()()
    return replace(
        plan,
        choices={**plan.choices, group: name},
        options={**plan.options, group: options},
    )


def _declared(plan: "RunPlan", catalog: Catalog, group: str) -> str:
    options = plan.options["task"]
    component = plan.component("task", catalog.plugins)
    for holder in (options, component.load()):
        name = getattr(holder, group, None)
        if isinstance(name, str):
            return name
    return str(getattr(component.build(options), group, ""))
