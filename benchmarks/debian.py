"""Programs that tests and measurements need and pip cannot bring."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from checkengine.guards.errors import UserError

T = TypeVar("T")
LOCK = Path(tempfile.gettempdir()) / "checkengine-apt.lock"


def found_or_installed(find: Callable[[], T | None], package: str, what: str) -> T:
    """What `find` finds, after installing Debian's package where this process may. UserError where it is not to be
    had, which says what to install."""
    if (found := find()) is not None:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := find()) is None:
                install(package)
                found = find()
        if found is not None:
            return found
    raise UserError(f"{what} is not here: install it (Debian: apt-get install {package})")


def install(package: str) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", package]
    if subprocess.run(command, env=environment, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update"], env=environment, capture_output=True, check=False)
        subprocess.run(command, env=environment, capture_output=True, check=False)


def program(name: str, package: str) -> str:
    """Path of a program of that package."""
    return found_or_installed(lambda: shutil.which(name), package, name)
