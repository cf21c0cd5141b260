"""What a user gets who installs the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, because setuptools leaves a build directory beside the sources."""
    scratch = tmp_path_factory.mktemp("wheel")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for folder in project["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(ROOT / folder, scratch / "src" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, scratch / "src" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(scratch), str(scratch / "src")], check=True)
    return zipfile.ZipFile(next(scratch.glob("*.whl")))


def test_the_wheel_claims_no_top_level_name_but_ours(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"checkengine"}


def test_nothing_in_the_wheel_runs_when_python_starts(wheel: zipfile.ZipFile) -> None:
    """A `.pth` file was how a poisoned release of another tool ran (PYSEC-2026-2)."""
    names = [Path(name).name for name in wheel.namelist()]
    assert [name for name in names if name.endswith(".pth") or name in ("sitecustomize.py", "usercustomize.py")] == []


def test_the_wheel_holds_every_source_file_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"checkengine/py.typed"}
    for package, folder in project["tool"]["setuptools"]["package-dir"].items():
        inside = package.replace(".", "/")
        wanted |= {f"{inside}/{path.relative_to(ROOT / folder)}" for path in (ROOT / folder).rglob("*.py")}
    assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_holds_every_data_file_that_lies_beside_the_sources(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = set()
    for package, folder in project["tool"]["setuptools"]["package-dir"].items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in {".py", ".pyc", ".md"} and "__pycache__" not in path.parts:
                wanted.add(f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder)}")
    assert "checkengine/py.typed" in wanted
    assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("/LICENSE") and ".dist-info/" in name for name in wheel.namelist())


def test_the_core_requirements_never_pull_in_vllm(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert len(required) > 10
    assert [line for line in required if "vllm" in line.partition(";")[0]] == []
