"""A rank as its coordinator sees it: a process, two pipes, and when it was last heard of."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkengine.engine_shim.ranks.moe import MoeShape
from checkengine.engine_shim.ranks.trouble import Trouble

Inbox = queue.Queue[tuple[int, dict[str, Any] | None]]
"""(rank, message); None where the process is gone."""


class RankProcess:
    def __init__(
        self, rank: int, weights: Path, shape: MoeShape, trouble: Trouble, inbox: Inbox, timeout: float
    ) -> None:
        self.rank = rank
        self.heard = time.monotonic()
        self.ready = False
        given = {
            "rank": rank,
            "weights": str(weights),
            "shape": asdict(shape),
            "trouble": asdict(trouble),
            "timeout": timeout,
        }
        self._log = (weights.parent / f"rank-{rank}.log").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "checkengine.engine_shim.ranks.worker", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        """Silent where the process is gone: its end is told by the inbox."""
        stdin = self.process.stdin
        with contextlib.suppress(OSError, ValueError):
            assert stdin is not None
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace").strip()

    def _listen(self, inbox: Inbox) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self.heard = time.monotonic()
                message = json.loads(line)
                if "beat" not in message:
                    inbox.put((self.rank, message))
        inbox.put((self.rank, None))
