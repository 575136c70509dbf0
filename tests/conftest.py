"""Settings of the whole suite: small processes, no network, shapes of public ops checked."""

import os
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "runs"), str(HERE / "roles")]  # helpers that several folders share

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    WANDB_MODE="offline",
    RAY_USAGE_STATS_ENABLED="0",
    MPLBACKEND="Agg",
)

from jaxtyping import install_import_hook  # noqa: E402 - before anything imports the ops

install_import_hook("bestiary.ops", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell without job control starts background commands so, and their children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Caches of tests stay out of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this process for one module: 32 logical cores and 4 logical accelerators."""
    from bestiary.distributed.cluster import start_cluster, stop_cluster
    from bestiary.distributed.guard import clean
    from bestiary.distributed.tokens import new_token, temp_dir

    token = new_token()
    started = start_cluster(num_cpus=32, num_gpus=4, temp_dir=temp_dir(token))
    yield started
    stop_cluster()
    clean(token, grace_s=0.5)


# --------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def lab_site(tmp_path_factory):
    """A folder with the metadata of the test plugin ``tests/runs/run_lab``."""
    from run_help import install

    return install(tmp_path_factory.mktemp("site") / "lib")


@pytest.fixture(scope="module")
def lab(lab_site):
    """The installed plugins and the test plugin, in this process."""
    from bestiary.plugins.manager import load_plugins

    sys.path.insert(0, str(lab_site))
    yield load_plugins()
    sys.path.remove(str(lab_site))


@pytest.fixture(scope="module")
def make_command(tmp_path_factory):
    """Command lines in processes of their own that leave nothing behind, also on failure."""
    from run_help import Command

    made = []

    def make(**options):
        made.append(Command(tmp_path_factory.mktemp("work"), **options))
        return made[-1]

    yield make
    for command in made:
        command.close()
