"""``bestiary doctor``: what is wrong with this machine and installation, and how to mend it."""

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from packaging.version import Version

from bestiary.errors import EXIT_FAILURE, BestiaryError, Owner

if TYPE_CHECKING:
    from bestiary.plugins.component import Component

Level = Literal["ok", "note", "wrong"]

_GIB: Final = 1 << 30
_NEEDED_TORCH: Final = "2.10"
_NEEDED_RAY: Final = "2.50"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        level: ``wrong`` stops runs, ``note`` may matter.
        subject: what was looked at.
        text: what was found.
        mend: what to do about it.
    """

    level: Level
    subject: str
    text: str
    mend: str = ""


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if something is wrong."""
    findings = list(examine(arguments.block_plugin))
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.level:<6}{finding.subject:<14}{finding.text}\n")
            if finding.mend:
                sys.stdout.write(f"{'':<20}-> {finding.mend}\n")
    return EXIT_FAILURE if any(finding.level == "wrong" for finding in findings) else 0


def examine(block: list[str]) -> Iterator[Finding]:
    """All findings; a look that fails itself is one."""
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("torch", _torch),
        ("ray", _ray),
        ("cpu", _cpu),
        ("memory", _memory),
        ("shared memory", _shared_memory),
        ("disk", _disk),
        ("plugins", lambda: _plugins(block)),
    ]
    for subject, look in looks:
        try:
            yield from look()
        except Exception as error:  # whatever is broken on this machine is a finding
            yield Finding("wrong", subject, f"cannot be examined: {type(error).__name__}: {error}")


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.prefix == sys.base_prefix:
        yield Finding("note", "python", f"{text}, in no environment of its own", "make a venv")
    else:
        yield Finding("ok", "python", text)


def installed(name: str, wanted: str, extra: str) -> Finding | None:
    """What is wrong with an installed distribution; None when it will do."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding("wrong", name, "is not installed", f"pip install '{extra}'")
    if Version(found) < Version(wanted):
        text = f"{found} is too old, {wanted} is wanted"
        return Finding("wrong", name, text, f"pip install -U {name}")
    return None


def _torch() -> Iterator[Finding]:
    fault = installed("torch", _NEEDED_TORCH, "bestiary[torch]")
    if fault is not None:
        yield fault
        return
    torch = import_module("torch")
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(index) for index in range(count)})
    devices = f"{count} x {', '.join(names)}" if count else "no accelerator, CPU only"
    yield Finding("ok", "torch", f"{torch.__version__}, {devices}")
    if torch.version.cuda and not count and shutil.which("nvidia-smi"):
        yield Finding(
            "wrong", "torch", "built for CUDA, which finds no device though a driver is there",
            "compare `nvidia-smi` with torch.version.cuda: the driver may be older than the build",
        )  # fmt: skip
    if not torch.distributed.is_available():
        yield Finding("wrong", "torch", "built without torch.distributed", "install another build")


def _ray() -> Iterator[Finding]:
    fault = installed("ray", _NEEDED_RAY, "bestiary[torch]")
    yield fault or Finding("ok", "ray", version("ray"))
    if os.environ.get("RAY_ADDRESS"):
        yield Finding(
            "note", "ray", f"RAY_ADDRESS={os.environ['RAY_ADDRESS']} is set; runs join by "
            "cluster.address only", "unset it if Ray of other programs misbehaves",
        )  # fmt: skip


def _cpu() -> Iterator[Finding]:
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    load = os.getloadavg()[0]
    level: Level = "note" if load > usable else "ok"
    mend = "others use this machine: times will be longer than usual" if load > usable else ""
    yield Finding(level, "cpu", f"{usable} of {count} cores usable, load {load:.1f}", mend)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if memory.available < 2 * _GIB:
        yield Finding("wrong", "memory", text, "a tiny run needs about 2 GiB: end other programs")
    else:
        yield Finding("ok", "memory", text)


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")  # noqa: S108 - this is what is examined
    if not folder.is_dir():
        yield Finding("note", "shared memory", "there is no /dev/shm; Ray uses the disk instead")
        return
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free in /dev/shm"
    if usage.free < 600 << 20:
        mend = "in a container: --shm-size=2g; remove old files; lower cluster.object_store_mb"
        yield Finding("wrong", "shared memory", text, mend)
    else:
        yield Finding("ok", "shared memory", text)


def _disk() -> Iterator[Finding]:
    for subject, folder in (("disk", Path.cwd()), ("temp", Path(os.environ.get("TMPDIR", "/tmp")))):  # noqa: S108 - what Ray uses
        usage = shutil.disk_usage(folder)
        text = f"{usage.free / _GIB:.1f} GiB free in {folder}"
        if not os.access(folder, os.W_OK):
            yield Finding("wrong", subject, f"{folder} cannot be written to", "change the folder")
        elif usage.free < 2 * _GIB:
            yield Finding("wrong", subject, text, "free some: checkpoints and Ray's logs need it")
        elif usage.free / usage.total < 0.05:
            yield Finding("note", subject, f"{text}, under 5 %", "Ray stops spilling at 95 % full")
        else:
            yield Finding("ok", subject, text)


def _plugins(block: list[str]) -> Iterator[Finding]:
    from bestiary.plugins.manager import load_plugins

    found = load_plugins(block=block, enforce_required=False)
    for record in found.records:
        what = f"{record.name} ({record.distribution} {record.version})"
        if record.status == "failed":
            mend = f"mend or uninstall {record.distribution}, or --block-plugin {record.name}"
            yield Finding("wrong", "plugin", f"{what}: {record.reason}", mend)
        elif record.status == "blocked" or record.reason:
            yield Finding("note", "plugin", f"{what} {record.status}: {record.reason}")
        else:
            yield from _components(found.registry.components(), record.owner, what)
    for note in found.notes:
        yield Finding("note", "plugin", note)


def _components(components: "list[Component]", owner: Owner, what: str) -> Iterator[Finding]:
    """Whether the options of each component of a plugin can be read."""
    own = [component for component in components if component.owner == owner]
    broken = []
    for component in own:
        try:
            component.options_class()
        except BestiaryError as error:
            broken.append(Finding("wrong", "plugin", str(error).splitlines()[0], f"see {what}"))
    yield from broken or [Finding("ok", "plugin", f"{what}: {len(own)} components")]
