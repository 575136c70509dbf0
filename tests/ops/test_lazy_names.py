import importlib
import subprocess
import sys

import pytest

import bestiary.ops as ops


def test_importing_the_package_loads_no_torch():
    code = "import sys, bestiary.ops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ops.__all__)
def test_every_name_resolves_to_its_one_home(name):
    found = getattr(ops, name)
    home = importlib.import_module(f"bestiary.ops.{ops._HOMES.get(name, name)}")
    assert found is (getattr(home, name) if name in ops._HOMES else home)


def test_unknown_names_are_attribute_errors():
    assert sorted(ops.__all__) == dir(ops)
    with pytest.raises(AttributeError, match="gea"):
        _ = ops.gea
