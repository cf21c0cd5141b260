"""LiteLLM's proxy beside ours: in an environment of its own, since its pins are others than ours."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from checkengine.benchmarks.proxy_load import Process
from checkengine.guards.errors import UserError

LITELLM = "litellm"
START_SECONDS = 120.0
ALONE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "OMP_NUM_THREADS": "1"}
"""Nothing is fetched."""
OPEN = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
"""It listens on this machine only."""


@contextmanager
def litellm_proxy(python: Path, upstream: str, cores: set[int] | None) -> Iterator[Process]:
    """One worker, in front of `upstream`, without a database. Raises UserError where it does not come up."""
    program = python.parent / LITELLM
    if not program.is_file():
        raise UserError(f"{program} is not there: --litellm takes the Python of an environment with litellm[proxy]")
    with tempfile.TemporaryDirectory(prefix="checkengine-bench-") as directory:
        config, port = Path(directory) / "config.yaml", free_port()
        entry = {"model": "openai/mock", "api_base": f"{upstream}/v1", "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": "mock", "litellm_params": entry}]}))
        command = [
            str(program),
            "--config",
            str(config),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--num_workers",
            "1",
        ]
        with (Path(directory) / "log").open("w") as log:
            running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, env=os.environ | ALONE | OPEN
            )
            if cores:
                os.sched_setaffinity(running.pid, cores)
            try:
                if not _is_up(running, port):
                    said = (Path(directory) / "log").read_text().strip()[-400:]
                    raise UserError(f"LiteLLM's proxy did not come up within {START_SECONDS:.0f} s: {said}")
                yield Process(running, port)
            finally:
                running.terminate()
                running.wait(30)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _is_up(running: subprocess.Popen[str], port: int) -> bool:
    began = time.monotonic()
    while running.poll() is None and time.monotonic() - began < START_SECONDS:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=2).close()
            return True
        time.sleep(0.2)
    return False
