"""YAML files that people and plugins bring: where they are, and none twice."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bestiary.config.schema import GROUPS, MANY, MODELS
from bestiary.errors import ConfigError, Owner, PluginError


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with YAML files in subfolders.

    Args:
        folder: where it is.
        title: how messages call it.
        owner: the plugin that brings it; None for the user's own.
    """

    folder: Path
    title: str
    owner: Owner | None = None


def package_place(package: str, owner: Owner) -> Place:
    """The folder of a plugin's configuration package.

    Raises:
        PluginError: if there is no such package.
    """
    try:
        spec = find_spec(package)
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise PluginError(
            f"the configuration package '{package}' cannot be found",
            hint="bestiary_config_packages names importable packages with YAML files inside",
            owner=owner,
        )
    return Place(Path(next(iter(spec.submodule_search_locations))), f"package {package}", owner)


def yaml_files(places: Iterable[Place]) -> dict[str, dict[str, Path]]:
    """Paths by folder and name: ``{"experiment": {"demo": Path(...)}}``.

    Hydra takes the first of two equal names in silence, so equal names are refused, and so are
    files in the folder of a component group, whose options come from packages.

    Raises:
        ConfigError: naming both files, or the file that stands in a wrong folder.
    """
    found: dict[str, dict[str, Path]] = {}
    for place in places:
        for path in sorted(place.folder.glob("*/**/*.yaml")):
            inside = path.relative_to(place.folder)
            folder, name = inside.parts[0], Path(*inside.parts[1:]).with_suffix("").as_posix()
            if folder != "model" and (folder in GROUPS or folder == MANY):
                raise ConfigError(
                    f"{path}: options of the group '{folder}' come from packages, not from files",
                    hint="put the settings into experiment/NAME.yaml, chosen by +experiment=NAME",
                    owner=place.owner,
                )
            taken = found.setdefault(folder, {}).get(name)
            if folder == "model" and name in MODELS:
                taken = Path("the package bestiary")
            if taken is not None:
                raise ConfigError(
                    f"{folder}={name} stands in {taken} and in {path} ({place.title})",
                    hint="rename or remove one of them",
                    owner=place.owner,
                )
            found[folder][name] = path
    return found
