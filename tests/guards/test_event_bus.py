"""The event bus: nobody who listens makes a publisher wait."""

from __future__ import annotations

import threading

from checkengine.guards.bus import EventBus
from checkengine.guards.events import BrakePulled, GuardDisabled

WAIT = 30.0


def event(number: int) -> GuardDisabled:
    return GuardDisabled("guard", str(number), 0.0)


def test_a_listener_gets_every_event_in_order_before_close_returns():
    bus, heard = EventBus(), []
    subscription = bus.subscribe(heard.append, name="all")
    for number in range(1000):
        bus.publish(event(number))
    bus.close()
    assert heard == [event(number) for number in range(1000)]
    assert (subscription.delivered, subscription.dropped) == (1000, 0)


def test_a_full_queue_drops_and_counts_exactly_while_the_publisher_goes_on():
    bus, gate, busy = EventBus(), threading.Event(), threading.Event()

    def slow(_: object) -> None:
        busy.set()
        gate.wait(WAIT)

    subscription = bus.subscribe(slow, name="slow", capacity=10)
    bus.publish(event(0))
    assert busy.wait(WAIT)
    for number in range(1, 101):
        bus.publish(event(number))
    assert bus.dropped() == {"slow": 90}
    gate.set()
    bus.close()
    assert (subscription.delivered, subscription.dropped) == (11, 90)


def test_drops_are_exact_with_many_publishers():
    bus, gate, busy = EventBus(), threading.Event(), threading.Event()

    def slow(_: object) -> None:
        busy.set()
        gate.wait(WAIT)

    subscription = bus.subscribe(slow, name="slow", capacity=50)
    bus.publish(event(0))
    assert busy.wait(WAIT)
    threads = [threading.Thread(target=lambda: [bus.publish(event(i)) for i in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gate.set()
    bus.close()
    assert (subscription.delivered, subscription.dropped) == (51, 1950)


def test_a_listener_that_raises_is_logged_once_and_detached_and_the_others_go_on(caplog):
    bus, heard, done = EventBus(), [], threading.Event()

    def broken(_: object) -> None:
        raise RuntimeError("broken listener")

    subscription = bus.subscribe(broken, name="broken")
    bus.subscribe(lambda e: (heard.append(e), done.set() if len(heard) == 50 else None), name="fine")
    for number in range(50):
        bus.publish(event(number))
    assert done.wait(WAIT)
    bus.close()
    assert len(heard) == 50
    assert (subscription.delivered, subscription.dropped) == (0, 50)
    assert not subscription.open
    assert caplog.text.count("listener broken raised") == 1


def test_a_direct_listener_hears_at_once_and_is_detached_when_it_raises(caplog):
    bus, heard = EventBus(), []

    def broken(_: object) -> None:
        raise RuntimeError("broken counter")

    bus.subscribe_sync(broken, name="broken")
    bus.subscribe_sync(heard.append, name="fine")
    for number in range(3):
        bus.publish(event(number))
        assert len(heard) == number + 1
    assert caplog.text.count("listener broken raised") == 1


def test_a_listener_hears_only_the_kinds_that_it_asked_for():
    bus, heard = EventBus(), []
    bus.subscribe(heard.append, name="brakes", kinds=(BrakePulled,))
    bus.publish(event(1))
    bus.publish(BrakePulled("guard", 5, 300.0, 0.0))
    bus.close()
    assert [type(e) for e in heard] == [BrakePulled]


def test_publishing_after_close_is_counted_as_dropped():
    bus, heard = EventBus(), []
    subscription = bus.subscribe(heard.append, name="late")
    bus.close()
    bus.publish(event(1))
    assert (heard, subscription.dropped) == ([], 1)
