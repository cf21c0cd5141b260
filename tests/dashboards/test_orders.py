"""From an operator's word to a switch in an engine: catalog, file beside the spool, watch, obedience, report."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "web"))

from seeded import NOW, Spool, write

from checkengine.dashboards.order_files import OrderFiles
from checkengine.engine_shim.order_watch import OrderWatch
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.errors import UserError
from checkengine.obeying import Obedience
from checkengine.replay import orders
from checkengine.replay.catalog import Catalog, controls
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.orders import Order
from checkengine.reporting import ReplicaReporter, replica_facts

ME = Actor("anna", "operator")
BOOT = "a" * 16


@pytest.fixture
def catalog() -> Any:
    catalog = Catalog.open(":memory:")
    write(catalog, [Spool(BOOT).replica("gpu-1:1", NOW), Spool("b" * 16).replica("gpu-2:1", NOW)])
    return catalog


def ask(catalog: Catalog, replica: str, subject: str, state: str, name: str = "", **more: Any) -> int:
    with catalog.writing() as session:
        return controls.ask(
            session, ME, replica=replica, subject=subject, name=name, desired={"state": state}, time=NOW, **more
        )


def spools(folder: Path) -> Path:
    for boot in (BOOT, "b" * 16):
        (folder / f"{boot}-00000000.spool").touch()
    return folder


def test_an_order_lands_beside_the_spool_of_whom_it_concerns(catalog: Catalog, tmp_path: Path) -> None:
    files = OrderFiles(spools(tmp_path))
    files(catalog, NOW)
    assert not list(tmp_path.glob("*.orders")), "nothing is wanted of anybody"
    one = ask(catalog, "gpu-1:1", "guard", "off", "salad")
    every = ask(catalog, "*", "brake", "pull")
    files(catalog, NOW)
    told = orders.read(orders.orders_path(tmp_path, BOOT), "gpu-1:1")
    assert [(order.revision, order.subject, order.name, order.state) for order in told] == [
        (one, "guard", "salad", "off"),
        (every, "brake", "", "pull"),
    ]
    (other,) = orders.read(orders.orders_path(tmp_path, "b" * 16), "gpu-2:1")
    assert other.revision == every


def test_the_newest_word_holds_and_what_expired_is_gone(catalog: Catalog, tmp_path: Path) -> None:
    files = OrderFiles(spools(tmp_path))
    ask(catalog, "gpu-1:1", "guard", "off", "salad")
    ask(catalog, "gpu-1:1", "guard", "on", "salad")
    ask(catalog, "gpu-1:1", "capture", "arm", expires=NOW + 5)
    files(catalog, NOW)
    assert [order.state for order in orders.read(orders.orders_path(tmp_path, BOOT), "gpu-1:1")] == ["on", "arm"]
    files(catalog, NOW + 6)
    assert [order.state for order in orders.read(orders.orders_path(tmp_path, BOOT), "gpu-1:1")] == ["on"]


def test_orders_of_a_process_that_is_gone_are_removed(catalog: Catalog, tmp_path: Path) -> None:
    files = OrderFiles(spools(tmp_path))
    ask(catalog, "*", "brake", "pull")
    files(catalog, NOW)
    (tmp_path / f"{BOOT}-00000000.spool").unlink()
    files(catalog, NOW)
    assert [path.stem for path in tmp_path.glob("*.orders")] == ["b" * 16]


def put(path: Path, *told: Order, replica: str = "me") -> None:
    orders.write(path, orders.encode(replica, told))


def test_each_order_is_obeyed_once_in_its_turn_and_a_refused_one_stops_none(tmp_path: Path) -> None:
    path, done, rounds = tmp_path / "x.orders", [], []

    def obey(order: Order) -> None:
        done.append(order.revision)
        if order.name == "unknown":
            raise KeyError(order.name)

    watch = OrderWatch(path, "me", obey, lambda: rounds.append(watch.applied))
    assert not watch.look()
    put(path, Order(2, "guard", "unknown", {"state": "off"}), Order(1, "guard", "salad", {"state": "off"}))
    assert watch.look()
    assert not watch.look()
    put(path, Order(1, "guard", "salad", {"state": "off"}), Order(3, "brake", "", {"state": "pull"}))
    assert watch.look()
    assert (done, watch.applied, rounds) == ([1, 2, 3], 3, [2, 3])
    assert "unknown" in watch.refused[2]


def test_another_replicas_orders_are_none_of_ours(tmp_path: Path) -> None:
    put(tmp_path / "x.orders", Order(1, "brake", "", {"state": "pull"}), replica="somebody")
    assert orders.read(tmp_path / "x.orders", "me") == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"replica":"me","orders":[{}]}', b'{"replica":"me","orders":[1]}', b"\xff"]
)
def test_a_damaged_file_stops_nothing_and_is_read_again_when_it_is_whole(tmp_path: Path, data: bytes) -> None:
    path, heard = tmp_path / "x.orders", threading.Event()
    path.write_bytes(data)
    watch = OrderWatch(path, "me", lambda order: heard.set())
    watch.start()
    put(path, Order(1, "brake", "", {"state": "pull"}))
    assert heard.wait(30)
    watch.close()
    assert not path.exists()


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.orders").write_bytes(b" " * (orders.MOST_BYTES + 1))
    with pytest.raises(ValueError, match="larger than"):
        orders.read(tmp_path / "x.orders", "me")


class Switches:
    """Stands where ShimSwitches stands and keeps what was turned."""

    def __init__(self) -> None:
        self.turned: list[Any] = []

    def guards(self) -> list[dict[str, Any]]:
        return [{"name": "salad"}, {"name": "nonfinite"}, {"name": "sidecar"}]

    def switch_guard(self, name: str, action: str) -> None:
        self.turned.append((name, action))

    def release_brake(self) -> None:
        self.turned.append("released")

    def arm(self, when: str, **more: Any) -> dict[str, Any]:
        self.turned.append((when, more))
        return {"armed": {"id": "arm-1"}}

    def disarm(self, identifier: str) -> None:
        self.turned.append(("disarm", identifier))


class Policy:
    def __init__(self) -> None:
        self.actions: dict[str, str] = {}
        self.pulled: list[str] = []

    def set_action(self, guard: str, action: str) -> None:
        self.actions[guard] = action

    def pull(self, guard: str) -> None:
        self.pulled.append(guard)


def obedience(held: list[bool] | None = None) -> tuple[Obedience, Switches, Policy]:
    switches, policy = Switches(), Policy()
    configured: Any = {"salad": "observe", "nonfinite": "retry"}.__getitem__
    made = Obedience(switches, policy, configured, held.append if held is not None else None)  # type: ignore[arg-type]
    return made, switches, policy


def test_every_order_that_can_be_asked_for_is_obeyed() -> None:
    held: list[bool] = []
    obey, switches, policy = obedience(held)
    for subject, states in controls.SUBJECTS.items():
        for number, state in enumerate(states):
            name = "salad" if subject == "guard" else "sidecar" if subject == "sidecar" else ""
            obey(Order(number, subject, name, {"state": state, "when": "entropy > 5", "level": "L2", "seconds": 60.0}))
    assert ("salad", "disable") in switches.turned
    assert ("salad", "enable") in switches.turned
    assert ("salad", "rearm") in switches.turned
    assert ("sidecar", "disable") in switches.turned
    assert "released" in switches.turned
    assert ("entropy > 5", {"level": "L2", "seconds": 60.0, "most": 3}) in switches.turned
    assert ("disarm", "arm-1") in switches.turned
    assert (policy.actions, policy.pulled, held) == ({"salad": "observe"}, ["salad", "nonfinite"], [True, False])


def test_a_guard_that_is_let_to_act_does_what_it_was_configured_to_or_stops() -> None:
    obey, _, policy = obedience()
    obey(Order(1, "guard", "salad", {"state": "act"}))
    obey(Order(2, "guard", "nonfinite", {"state": "act"}))
    assert policy.actions == {"salad": "stop", "nonfinite": "retry"}


@pytest.mark.parametrize(
    "order",
    [Order(1, "guard", "unknown", {"state": "act"}), Order(1, "nothing", "", {"state": "off"}),
     Order(1, "replica", "", {"state": "drain"})],
)  # fmt: skip
def test_what_cannot_be_done_here_is_refused_in_a_sentence(order: Order) -> None:
    obey, _, _ = obedience()
    with pytest.raises(UserError):
        obey(order)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = b"".join(path.read_bytes() for path in sorted(folder.glob("*.spool"))).splitlines()
    return [json.loads(line.split(b" ", 2)[2]) for line in lines]


def test_a_replica_tells_what_it_is_what_it_obeyed_and_when_it_goes(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, replica="me", sync="never")
    told, now = {"salad": {"active": True}}, [10.0]
    facts = {"host": "h", "model": "m"}
    reporter = ReplicaReporter(
        spool, facts, lambda: told, counters=lambda: {"ecc_corrected": 1}, applied=lambda: 7, clock=lambda: now[0]
    )
    reporter.start()
    now[0] = 12.0
    reporter.close()
    spool.close()
    first, last = records(tmp_path)
    assert (first["kind"], first["replica"], first["time"]) == ("replica", "me", 10.0)
    assert first["data"] == facts | {
        "started": 10.0, "state": "serving", "applied": 7, "counters": {"ecc_corrected": 1}, "guards": told,
    }  # fmt: skip
    assert (last["data"]["state"], last["time"]) == ("gone", 12.0)


def test_a_replica_that_cannot_tell_of_itself_serves_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Any:
        raise RuntimeError("no")

    spool = SpoolWriter(tmp_path, replica="me", sync="never")
    ReplicaReporter(spool, {}, fails).tell()
    assert "cannot tell of itself" in caplog.text
    assert records(tmp_path) == []


def test_what_decides_numbers_stands_in_the_register(monkeypatch: pytest.MonkeyPatch) -> None:
    from checkengine.engine_shim.devices import DeviceFacts

    monkeypatch.setenv("CHECKENGINE_IMAGE", "registry/serve:1.4")
    environment = {
        "engine": "embedded", "model": "m", "kernel": "paged", "threads": 8, "blas": "MKL", "faults": [],
        "libraries": {"torch": "2.13"}, "layout": {"a": [1]},
    }  # fmt: skip
    told = replica_facts(environment, DeviceFacts("GPU-1", "H200", "570"), "0.1.0")
    assert (told["engine"], told["device"], told["driver"], told["image"]) == (
        "embedded", "GPU-1", "570", "registry/serve:1.4",
    )  # fmt: skip
    assert told["kernels"] == {"threads": 8, "blas": "MKL"}
    assert told["versions"]["torch"] == "2.13"
    assert "numpy" in told["versions"]
