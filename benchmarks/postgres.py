"""A PostgreSQL server of one's own in a temporary folder, for tests and measurements; gone when closed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import sqlalchemy as sa

from checkengine.benchmarks.debian import found_or_installed
from checkengine.guards.errors import UserError

PLACES = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin"
UNPRIVILEGED = ("postgres", "nobody")
DATABASE = "checkengine"


class PostgresServer:
    """Listens on a Unix socket only. Durability is as configured by default (fsync on), unless `quick`."""

    def __init__(self, *, quick: bool = True) -> None:
        """Raises UserError where there is no PostgreSQL and none can be installed."""
        self._programs = programs()
        self._user = unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="ckpg-"))
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._data = self._folder / "data"
        try:
            self._run("initdb", "-D", str(self._data), "--auth=trust", "--no-sync", "-U", DATABASE, "-E", "UTF8")
            self._configure(quick)
            self.start()
            self._run("createdb", "-h", str(self._folder), "-U", DATABASE, DATABASE)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{DATABASE}@/{DATABASE}?host={self._folder}"

    def start(self) -> None:
        """Returns when the server answers."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """SIGKILL to the server and all its backends, as a crash of the machine would end them."""
        postmaster = self._pid()
        family = [*children(postmaster), postmaster]
        # Stopped first: a postmaster that sees a child die would restart the others.
        os.kill(postmaster, signal.SIGSTOP)
        for process in [*family, *children(postmaster)]:
            kill(process, signal.SIGKILL)
        wait_until_gone(family)
        # Where nobody reaps the dead (a container without an init), its pid would be taken for a running server's.
        for file in (self._data / "postmaster.pid", self._folder / ".s.PGSQL.5432.lock"):
            file.unlink(missing_ok=True)

    def emptied(self) -> str:
        """URL of the database, with nothing in it and nobody connected."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        with engine.connect() as connection:
            connection.exec_driver_sql(f"{others} AND pid <> pg_backend_pid()")
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        return self.url

    def close(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def _configure(self, quick: bool) -> None:
        lines = ["listen_addresses = ''", f"unix_socket_directories = '{self._folder}'", "max_connections = 200"]
        lines += ["fsync = off", "full_page_writes = off"] if quick else []
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if program != "pg_ctl" else subprocess.DEVNULL,
            cwd=self._folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
            user=None if self._user is None else self._user.pw_uid,
            group=None if self._user is None else self._user.pw_gid,
            extra_groups=None if self._user is None else [],
        )
        if check and done.returncode:
            log = self._folder / "log"
            words = done.stdout or (log.read_bytes() if log.exists() else b"")
            raise UserError(f"{program} failed: {words.decode(errors='replace')[-2000:]}")


def programs() -> Path:
    """The folder of initdb, pg_ctl and createdb."""
    return found_or_installed(find_programs, "postgresql", "PostgreSQL's server")


def find_programs() -> Path | None:
    candidates = [path for pattern in PLACES for path in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    if (initdb := shutil.which("initdb")) is not None:
        candidates.append(Path(initdb).resolve().parent)
    return next((path for path in candidates if all((path / p).exists() for p in ("initdb", "pg_ctl"))), None)


def unprivileged_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; None where this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise UserError("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")


def children(process: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found.append(int(stat.parent.name))
    return found


def kill(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def wait_until_gone(processes: list[int]) -> None:
    """A killed process that nobody has reaped yet is gone as well."""
    for process in processes:
        while Path(f"/proc/{process}").exists() and "Z" not in state_of(process):
            os.sched_yield()


def state_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
