"""What holds for the whole source tree: packages, import arrows, file sizes, and nothing that runs what it reads."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
"""Namespace to folder, for example checkengine.guards to guards."""
BARE = set(FOLDERS.values()) - {"checkengine"}
EVERYTHING = {"checkengine", "benchmarks", "dashboards", "detectors", "engine_shim", "guards", "replay"}
ARROWS = {
    "detectors": set(),
    "guards": {"detectors"},
    "replay": {"guards", "detectors"},
    "engine_shim": {"replay", "guards", "detectors"},
    "dashboards": {"replay", "guards"},
    "checkengine": EVERYTHING,
    "benchmarks": EVERYTHING,
}
MAX_LINES = 400


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py"))


def sources_and_tests() -> list[Path]:
    return sources() + sorted((ROOT / "tests").rglob("*.py"))


def module_name(path: Path) -> str:
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    prefix = "checkengine" if folder == "checkengine" else f"checkengine.{folder}"
    return ".".join([prefix, *rest]).removesuffix(".__init__")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported; relative imports are resolved."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, node.module] if node.module else base)
            # `from checkengine import guards` imports a folder as well as `from checkengine.guards import x` does
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def room(name: str) -> str | None:
    """The folder that an imported name of ours belongs to; None for other people's packages."""
    first, _, rest = name.partition(".")
    if first != "checkengine":
        return None
    second = rest.partition(".")[0]
    return second if second in BARE else "checkengine"


def where(path: Path, line: int, name: str) -> str:
    return f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_the_package_list_equals_the_folders_that_hold_packages() -> None:
    found = {module_name(path) for path in sources() if path.name == "__init__.py"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_folder_with_python_files_is_a_package() -> None:
    assert [str(path) for path in sources() if not (path.parent / "__init__.py").exists()] == []


def test_folders_import_only_what_the_arrows_allow() -> None:
    wrong = [
        where(path, line, name)
        for path in sources()
        for line, name in imported(path)
        if (target := room(name)) and (own := path.relative_to(ROOT).parts[0]) != target and target not in ARROWS[own]
    ]
    assert wrong == []


def test_the_arrow_test_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "detectors" / "language" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import checkengine.guards.step\n"
        "from checkengine.guards import step\n"
        "from checkengine import guards\n"
        "from ...guards import step\n"
        "def late():\n    from checkengine.guards.step import StepView\n"
    )
    assert [room(name) for _, name in imported(path)] == ["guards"] * 5


def test_nothing_imports_a_bare_folder_name() -> None:
    wrong = [
        where(path, line, name)
        for path in sources_and_tests()
        for line, name in imported(path)
        if name.partition(".")[0] in BARE
    ]
    assert wrong == []


def test_no_file_has_more_lines_than_a_reader_can_hold() -> None:
    long = {
        str(path.relative_to(ROOT)): n for path in sources() if (n := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_nothing_unpickles_what_it_reads() -> None:
    unsafe = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    wrong = [
        where(path, line, name) for path in sources() for line, name in imported(path) if name.split(".")[0] in unsafe
    ]
    assert wrong == []


def test_nothing_calls_a_loader_that_can_run_code() -> None:
    wrong = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "torch.save", "eval", "exec"}:
                wrong.append(where(path, node.lineno, ast.unparse(node.func)))
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                wrong.append(where(path, node.value.lineno, "allow_pickle"))
    assert wrong == []


def test_no_path_of_a_developers_machine_is_in_the_sources() -> None:
    text = [*sources_and_tests(), ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "requirements").iterdir()]
    needles = ["/wo" + "rk/", "/ro" + "ot/", "/opt/" + "pypi", "--index" + "-url"]
    assert [f"{path}: {needle}" for path in text for needle in needles if needle in path.read_text()] == []


IMPORT_VLLM = ("checkengine.benchmarks.vllm_soak_worker", "checkengine.motion.vllm_faulty_connector")


@pytest.mark.parametrize("name", [module_name(path) for path in sources() if path.name != "__main__.py"])
def test_every_module_imports(name: str) -> None:
    if name.startswith("checkengine.engine_shim.vllm") or name in IMPORT_VLLM:
        pytest.importorskip("vllm.config")
    if not name.endswith("migrations.env"):  # alembic runs it, it is no module to import
        importlib.import_module(name)
        assert name in sys.modules


SEVEN = ["torch", "fastapi", "prometheus_client", "opentelemetry.sdk", "numpy", "sklearn", "sqlalchemy"]


@pytest.mark.parametrize("package", SEVEN)
def test_the_shipped_code_really_uses_each_of_the_seven_packages(package: str) -> None:
    """Imported, and the imported name is used at least once in the same file."""
    users = [path for path in sources() if any(_uses(path, name) for name in _names_from(path, package))]
    assert users != []


def _names_from(path: Path, package: str) -> list[str]:
    """Names that a file binds by importing from the package."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [
                alias.asname or alias.name.partition(".")[0]
                for alias in node.names
                if f"{alias.name}.".startswith(f"{package}.")
            ]
    return names


def _uses(path: Path, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == name
        for node in ast.walk(ast.parse(path.read_text()))
    )
