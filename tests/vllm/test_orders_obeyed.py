"""From an operator's word in the catalog to a running engine and back, by the collector that lies between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chats import VICTIM, ask, prompt_length
from conftest import Switches

from checkengine.dashboards.collector import Collector
from checkengine.dashboards.order_files import OrderFiles
from checkengine.replay.catalog import Catalog, controls
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.register import replicas

pytestmark = pytest.mark.timeout(900)
ANNA = Actor("anna", "operator")
NAN = "checkengine:logits.nonfinite"


class Desk:
    """Where orders are given: what the dashboard's page of controls does, with the collector's rounds made by hand."""

    def __init__(self, spool: Path, catalog: Catalog) -> None:
        self.catalog = catalog
        self.collector = Collector(spool, lambda: catalog, after_round=[OrderFiles(spool)])

    def order(self, subject: str, state: str, name: str = "", **more: Any) -> None:
        """Given to every replica, and dealt with."""
        with self.catalog.writing() as session:
            desired = {"state": state, **more}
            revision = controls.ask(
                session, ANNA, replica="*", subject=subject, name=name, desired=desired, time=time.time()
            )
        self.until(lambda: all(row.applied >= revision for row in self.rows()), f"{subject} {state} was not dealt with")

    def rows(self) -> list[Any]:
        self.collector.run_once()
        with self.catalog.reading() as session:
            return replicas(session)

    def until(self, true: Callable[[], bool], words: str) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, words
            time.sleep(0.1)


@pytest.fixture(scope="module")
def desk(engine: Any) -> Iterator[Desk]:
    made = Desk(engine.spool, Catalog.open(":memory:"))
    made.until(lambda: bool(made.rows()), "the engine core is not in the register")
    yield made
    made.collector.close()


@pytest.fixture(scope="module")
def struck(engine: Any, switches: Switches) -> Callable[[], Any]:
    """How an answer ends whose seventh row of logits is NaN."""
    length = prompt_length(ask(engine, [VICTIM], max_tokens=1)[VICTIM]) + 7

    def asked() -> Any:
        with switches.on("nan_row", length=length):
            return ask(engine, [VICTIM], logprobs=None)[VICTIM].outputs[0].stop_reason

    return asked


@pytest.mark.parametrize(
    ("off", "on"),
    [
        (("guard", "off", "nonfinite"), ("guard", "on", "nonfinite")),
        (("guard", "observe", "nonfinite"), ("guard", "act", "nonfinite")),
        (("brake", "pull"), ("brake", "release")),
        (("sidecar", "off"), ("sidecar", "on")),
    ],
)
def test_an_order_holds_in_a_running_engine_until_the_opposite_is_ordered(
    desk: Desk, struck: Callable[[], Any], off: tuple[str, ...], on: tuple[str, ...]
) -> None:
    desk.order("brake", "release")
    desk.order(*off)
    # Other findings of the same answer may be acted on; this one is not.
    assert struck() != NAN
    desk.order(*on)
    assert struck() == NAN


def test_an_armed_capture_is_written_by_a_running_engine_that_serves_on(desk: Desk, engine: Any, bundles: Path) -> None:
    ask(engine, [VICTIM], max_tokens=2)
    known = set(bundles.glob("*-capture-*"))
    desk.order("capture", "arm", "c", when="length > 5", level="L1", seconds=600.0, most=1)
    answers = ask(engine, [VICTIM, "moon"], max_tokens=8)
    assert all(answer.outputs[0].finish_reason == "length" for answer in answers.values())
    ask(engine, ["moon"], max_tokens=4)
    desk.until(
        lambda: any((path / "manifest.json").exists() for path in set(bundles.glob("*-capture-*")) - known),
        "nothing was captured",
    )


def test_an_order_that_vllm_cannot_obey_is_dealt_with_and_serving_goes_on(desk: Desk, engine: Any) -> None:
    desk.order("replica", "drain")
    desk.order("guard", "off", "no such guard")
    assert ask(engine, ["moon"], max_tokens=4)["moon"].outputs[0].finish_reason == "length"
