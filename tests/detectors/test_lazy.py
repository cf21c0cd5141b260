"""Names that load at first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["detectors", "detectors.language", "detectors.drift", "guards"])
def test_every_exported_name_is_found_and_no_other_one(package):
    module = importlib.import_module(f"checkengine.{package}")
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match=rf"'checkengine.{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_importing_the_guards_loads_neither_torch_nor_numba():
    told = "import sys, checkengine.guards, checkengine.detectors; print({'torch', 'numba'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "set()\n"
