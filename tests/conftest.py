"""Settings of the whole suite: small processes, no network, shapes of public ops checked."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    WANDB_MODE="offline",
    RAY_USAGE_STATS_ENABLED="0",
    MPLBACKEND="Agg",
)

from jaxtyping import install_import_hook

install_import_hook("bestiary.ops", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


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
