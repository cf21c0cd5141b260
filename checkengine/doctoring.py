"""What `checkengine doctor` looks at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from checkengine import __version__
from checkengine.engine_shim.vllm.versions import TESTED, Hook, hooks, installed_version, tested

GROUP = "vllm.general_plugins"
NAME = "checkengine"
ALLOWED = "VLLM_PLUGINS"


def diagnosis(version: str | None = None, found: Sequence[Hook] | None = None) -> dict[str, Any]:
    """Of this environment; `version` and `found` are looked up where they are not given."""
    version = installed_version() if version is None else version
    return {"checkengine": __version__, "vllm": of_vllm(version, hooks() if found is None and version else found or ())}


def of_vllm(version: str, found: Sequence[Hook]) -> dict[str, Any]:
    if not version:
        return {"version": "", "off": []}
    off = [{"part": hook.part, "hook": hook.name, "why": hook.note} for hook in found if not hook.works]
    allowed = os.environ.get(ALLOWED)
    if not any(point.name == NAME for point in entry_points(group=GROUP)):
        off.append({"part": "everything", "hook": GROUP, "why": "checkengine is not installed in this environment"})
    elif allowed is not None and NAME not in allowed.split(","):
        off.append({"part": "everything", "hook": ALLOWED, "why": f"names other plugins: add {NAME} to it"})
    return {
        "version": version,
        "tested": tested(version),
        "tested_versions": [".".join(map(str, numbers)) for numbers in TESTED],
        "hooks": len(found),
        "off": off,
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """For people."""
    vllm = found["vllm"]
    told = [f"checkengine {found['checkengine']}"]
    if not vllm["version"]:
        return [*told, "vLLM: not installed here"]
    first, end = vllm["tested_versions"]
    standing = "tested" if vllm["tested"] else f"not tested: the tests ran on {first} up to, not including, {end}"
    told.append(f"vLLM {vllm['version']}: {standing}")
    if not vllm["off"]:
        told.append(f"  all {vllm['hooks']} hooks are there; CHECKENGINE_VLLM=1 vllm serve MODEL puts guards in")
    return told + [f"  off: {each['part']}: {each['hook']} {each['why']}" for each in vllm["off"]]
