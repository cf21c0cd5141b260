"""Bundles as format 1.0 wrote them."""

from __future__ import annotations

import json
from pathlib import Path

from checkengine.replay.bundle import BundleReader
from checkengine.replay.bundle.files import Entry


def as_format_1_0(path: Path) -> None:
    """Content in the clear, keys.json in the manifest, version 1.0."""
    reader = BundleReader(path)
    reader.capture()
    files = {name: reader._read_content(name) for name in reader.content_files()}
    entries = {}
    for name, data in files.items():
        (path / name).write_bytes(data)
        entries[name] = Entry.of(data).to_json()
    content = json.dumps({"nonce": "0", "files": entries}).encode()
    (path / "content/manifest.json").write_bytes(content)
    (path / "keys.json").write_bytes(b'{"content": "plain"}')
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["content"] = Entry.of(content).to_json()
    manifest["files"]["keys.json"] = Entry.of(b'{"content": "plain"}').to_json()
    data = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(data)
    marker = json.loads((path / "BUNDLE").read_text()) | {"manifest": Entry.of(data).to_json(), "version": [1, 0]}
    (path / "BUNDLE").write_text(json.dumps(marker))
