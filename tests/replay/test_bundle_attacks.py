from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from naive_engine import served
from plain_bundle import as_format_1_0

from checkengine.benchmarks.bundle_fuzz import scrambled
from checkengine.replay.bundle import BundleError, BundleReader, DeploymentKey, layout, write_bundle
from checkengine.replay.bundle.files import Entry

HOSTILE = [
    None,
    True,
    -1,
    2**31,
    2**70,
    1e308,
    "",
    "\u0000",
    "../x",
    [],
    {},
    [[]],
    {"$f64": "zz"},
    {"$tuple": [1]},
    "9" * 5000,
]


def written(folder: Path) -> Path:
    engine, sequence = served(2, steps=10)
    return write_bundle(engine.capture(sequence), folder, content="full", key=DeploymentKey(bytes(32)))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Content in the clear, so that the attacks reach what an attacker could have encrypted for us."""
    path = written(tmp_path_factory.mktemp("bundles"))
    as_format_1_0(path)
    return path


def use(path: Path) -> None:
    """All that a reader of bundles does before an engine is there."""
    reader = BundleReader(path)
    reader.verify()
    assert reader.findings
    reader.window()
    capture = reader.capture()
    for step in capture.replay_steps(capture.window.first_step):
        capture.memory_at(step.record.step)


def attack(bundle: Path, changed: dict[str, bytes], *, resign: bool) -> None:
    """Use the bundle with some files changed, digests made right again or not, and put it back as it was."""
    names = [*changed, layout.CONTENT_MANIFEST, layout.MANIFEST, layout.MARKER]
    before = {name: (bundle / name).read_bytes() for name in names}
    message = ""
    try:
        for name, data in changed.items():
            (bundle / name).write_bytes(data)
        if resign:
            sign_again(bundle, changed)
        use(bundle)
    except BundleError as error:
        message = str(error)
    finally:
        for name, data in before.items():
            (bundle / name).write_bytes(data)
    assert "\n" not in message


def sign_again(bundle: Path, changed: dict[str, bytes]) -> None:
    def put(manifest: str, edit: Callable[[dict[str, Any]], None]) -> bytes:
        value = json.loads((bundle / manifest).read_bytes())
        edit(value)
        data = json.dumps(value).encode()
        (bundle / manifest).write_bytes(data)
        return data

    content = {name: Entry.of(data).to_json() for name, data in changed.items() if name.startswith("content/")}
    core = {name: Entry.of(data).to_json() for name, data in changed.items() if name in layout.CORE_FILES}
    try:
        told = put(layout.CONTENT_MANIFEST, lambda value: value["files"].update(content))
        whole = put(
            layout.MANIFEST,
            lambda value: (value["files"].update(core), value.update(content=Entry.of(told).to_json())),  # type: ignore[func-returns-value]
        )
        put(layout.MARKER, lambda value: value.update(manifest=Entry.of(whole).to_json()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # The changed file is a manifest that can no longer be edited.


def all_files(bundle: Path) -> list[str]:
    return sorted(str(file.relative_to(bundle)) for file in bundle.rglob("*") if file.is_file())


@pytest.mark.parametrize("resign", [False, True])
@pytest.mark.parametrize("form", ["bundle", "encrypted"])
def test_scrambled_files_give_a_bundle_error_or_nothing(
    form: str, resign: bool, request: pytest.FixtureRequest
) -> None:
    bundle: Path = request.getfixturevalue(form)
    chance = random.Random(20261130 + resign)
    use(bundle)
    files = all_files(bundle)
    for _ in range(70):
        name = chance.choice(files)
        attack(bundle, {name: scrambled((bundle / name).read_bytes(), chance)}, resign=resign)
    use(bundle)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def test_hostile_values_in_signed_json_give_a_bundle_error_or_nothing(bundle: Path) -> None:
    chance = random.Random(7)
    names = [name for name in all_files(bundle) if name.endswith(".json")]
    for _ in range(120):
        name = chance.choice([*names, layout.MARKER])
        value = json.loads((bundle / name).read_bytes())
        *path, last = chance.choice(places(value)[1:] or [(None,)])
        target = value
        for key in path:
            target = target[key]
        if isinstance(target, dict | list) and chance.random() < 0.2:
            del target[last]
        else:
            target[last] = chance.choice(HOSTILE)
        attack(bundle, {name: json.dumps(value).encode()}, resign=name not in (layout.MARKER, layout.MANIFEST))


def test_hostile_numbers_in_signed_columns_give_a_bundle_error_or_nothing(bundle: Path) -> None:
    chance = random.Random(8)
    for _ in range(100):
        name = chance.choice([layout.RING, layout.TOKENS, layout.UNDO])
        columns = {key: column.copy() for key, column in safetensors.numpy.load((bundle / name).read_bytes()).items()}
        column = columns[chance.choice(sorted(columns))]
        if column.size and chance.random() < 0.8:
            limits = np.iinfo(column.dtype) if column.dtype.kind in "iu" else None
            values = [limits.min, limits.max, 0, 1, 1000] if limits else [np.nan]
            column.reshape(-1)[chance.randrange(column.size)] = chance.choice(values)
        elif chance.random() < 0.5:
            columns.pop(chance.choice(sorted(columns)))
        else:
            key = chance.choice(sorted(columns))
            columns[key] = columns[key].reshape(-1)[:-1].copy() if chance.random() < 0.5 else columns[key][None].copy()
        attack(bundle, {name: safetensors.numpy.save(columns)}, resign=True)


def test_a_path_where_nothing_is_says_so(tmp_path):
    with pytest.raises(BundleError, match="there is nothing at"):
        BundleReader(tmp_path / "nowhere")
