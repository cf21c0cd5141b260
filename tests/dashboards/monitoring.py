"""A real Prometheus and a real Alertmanager, as processes of a test, and a receiver of webhooks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from checkengine.benchmarks.debian import found_or_installed, program


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Scraped:
    """An endpoint for Prometheus; `wait` returns when it has been scraped so many times more."""

    def __init__(self, exposition: Callable[[], bytes]) -> None:
        self.scrapes = 0
        self._turn = threading.Condition()
        scraped = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exposition()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)
                with scraped._turn:
                    scraped.scrapes += 1
                    scraped._turn.notify_all()

            def log_message(self, *arguments: Any) -> None:
                """The test's output is its own."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait(self, scrapes: int = 1, seconds: float = 60.0) -> None:
        with self._turn:
            goal = self.scrapes + scrapes
            assert self._turn.wait_for(lambda: self.scrapes >= goal, seconds), "Prometheus does not scrape"

    def close(self) -> None:
        self._server.shutdown()


class Received:
    """An HTTP server that keeps what is posted to it: path, headers and body."""

    def __init__(self, status: int = 200) -> None:
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.times: list[float] = []
        """When each came, in Unix seconds."""
        self._arrived = threading.Condition()
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(status)
                self.end_headers()
                with received._arrived:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    received.posts.append((self.path, headers, body))
                    received.times.append(time.time())
                    received._arrived.notify_all()

            def log_message(self, *arguments: Any) -> None:
                """The test's output is its own."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait_for(self, found: Callable[[list[Any]], bool], seconds: float = 60.0) -> list[Any]:
        """The bodies that came, once `found` says that they are all."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: found(self.bodies()), seconds), self.posts
            return self.bodies()

    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, _, body in self.posts]

    def close(self) -> None:
        self._server.shutdown()


class Prometheus:
    """Asked by its HTTP interface."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expr: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expr)["result"]
        return found

    def names(self) -> set[str]:
        return set(self.ask("label/__name__/values"))


@contextmanager
def process(command: list[str], started: str, log: Path) -> Iterator[None]:
    """A process that has written `started` to its standard error; killed in the end."""
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert running.stderr is not None
        with log.open("w") as kept:
            for line in running.stderr:
                kept.write(line)
                if started in line:
                    break
            else:
                raise AssertionError(log.read_text())
        threading.Thread(target=running.stderr.read, daemon=True).start()
        yield
    finally:
        running.kill()
        running.wait()


@contextmanager
def prometheus(folder: Path, targets: dict[str, str], rules: str, alertmanager: str = "") -> Iterator[Prometheus]:
    """Scrapes and evaluates every second. `targets`: job to address."""
    port = free_port()
    (folder / "rules.yaml").write_text(rules)
    jobs = [
        {"job_name": job, "scrape_interval": "1s", "static_configs": [{"targets": [address]}]}
        for job, address in targets.items()
    ]
    configuration: dict[str, Any] = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": jobs,
    }
    if alertmanager:
        managers = [{"static_configs": [{"targets": [alertmanager]}]}]
        configuration["alerting"] = {"alertmanagers": managers}
    (folder / "prometheus.yaml").write_text(json.dumps(configuration))
    command = [
        program("prometheus", "prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=info",
    ]
    with process(command, "Server is ready to receive web requests", folder / "prometheus.log"):
        yield Prometheus(port)


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """Address of one that tells every alert to `webhook` at once."""
    port = free_port()
    configuration = {
        "route": {"receiver": "test", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": webhook}]}],
    }
    (folder / "alertmanager.yaml").write_text(json.dumps(configuration))
    command = [
        found_or_installed(alertmanager_program, "prometheus-alertmanager", "Alertmanager"),
        f"--config.file={folder / 'alertmanager.yaml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with process(command, "Listening on", folder / "alertmanager.log"):
        yield f"127.0.0.1:{port}"


def alertmanager_program() -> str | None:
    """Debian calls it prometheus-alertmanager."""
    return shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
