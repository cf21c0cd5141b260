"""Webhooks outlive the process that had to send them."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import killed_teller
from killed_teller import finding, settings_of
from monitoring import Received

from checkengine.dashboards.mailbox import Letter, Mailbox
from checkengine.dashboards.webhook_format import secret_bytes, verify
from checkengine.dashboards.webhooks import Receiver, Webhooks
from checkengine.guards.bus import EventBus
from checkengine.telling import start_telling

SECRET = "whsec_" + "YWJj" * 8


@pytest.fixture
def away() -> Iterator[Received]:
    """A receiver that says it is busy."""
    server = Received(status=503)
    yield server
    server.close()


@pytest.fixture
def back() -> Iterator[Received]:
    server = Received()
    yield server
    server.close()


def killed_while_it_waits(folder: Path, away: Received, incidents: Sequence[str], inherited: int = 0) -> list[str]:
    """SIGKILL once each incident, and each message of an earlier process, was tried in vain; their ids."""
    (folder / "secret").write_text(SECRET)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=killed_teller.tell_until_killed, args=(folder, away.port, list(incidents), theirs), daemon=True
    )
    before = len(away.posts)
    process.start()
    away.wait_for(lambda bodies: len(bodies) >= before + len(incidents) + inherited)
    process.kill()
    process.join()
    ours.close()
    return [headers["webhook-id"] for _, headers, _ in away.posts[before:]]


def tell_one_incident(folder: Path, receiver: Received) -> Any:
    """By a process that is closed in order once the receiver has had the message."""
    (folder / "secret").write_text(SECRET)
    bus = EventBus()
    telling = start_telling(settings_of(folder, receiver.port), bus)
    assert telling is not None
    bus.publish(finding("inc-1"))
    receiver.wait_for(lambda bodies: len(bodies) == 1)
    telling.close()
    bus.close()
    return telling


def deliver_what_is_left(folder: Path, receiver: Received) -> dict[str, int]:
    """A process that starts on the folder and is closed in order."""
    bus = EventBus()
    telling = start_telling(settings_of(folder, receiver.port), bus)
    assert telling is not None
    telling.close()
    bus.close()
    return {outcome: count for (_, outcome), count in telling.notifications().items() if count}


def test_a_webhook_that_was_not_delivered_before_a_kill_is_delivered_once_afterwards_under_its_old_id(
    tmp_path: Path, away: Received, back: Received
) -> None:
    tried = killed_while_it_waits(tmp_path, away, ["inc-1", "inc-2"])
    assert deliver_what_is_left(tmp_path, back) == {"delivered": 2}
    assert sorted(headers["webhook-id"] for _, headers, _ in back.posts) == sorted(tried)
    for (_, headers, body), came in zip(back.posts, back.times, strict=True):
        verify([secret_bytes(SECRET)], headers, body, came)
    assert {body["alerts"][0]["labels"]["incident"] for body in back.bodies()} == {"inc-1", "inc-2"}
    assert deliver_what_is_left(tmp_path, back) == {}
    assert list((tmp_path / "spool" / "webhooks").iterdir()) == []


def test_a_second_kill_loses_nothing_that_the_first_left(tmp_path: Path, away: Received, back: Received) -> None:
    first = killed_while_it_waits(tmp_path, away, ["inc-1"])
    second = killed_while_it_waits(tmp_path, away, ["inc-2"], inherited=1)
    assert set(first) < set(second)
    assert deliver_what_is_left(tmp_path, back) == {"delivered": 2}
    assert sorted(headers["webhook-id"] for _, headers, _ in back.posts) == sorted(second)


def test_what_a_process_in_order_could_not_deliver_waits_for_the_next(
    tmp_path: Path, away: Received, back: Received
) -> None:
    telling = tell_one_incident(tmp_path, away)
    assert telling.notifications()[("webhook", "failed")] == 0
    assert deliver_what_is_left(tmp_path, back) == {"delivered": 1}


def letter(number: int, receiver: str = "webhook", born: float = 1.0) -> Letter:
    return Letter(f"msg_{number:032x}", receiver, b"{}", born)


def left(directory: Path, *letters: Letter) -> Path:
    """As by a process that is gone."""
    box = Mailbox(directory)
    for each in letters:
        box.put(each)
    box.close()
    return box._box


def test_a_living_process_keeps_its_messages(tmp_path: Path) -> None:
    living = Mailbox(tmp_path)
    living.put(letter(1))
    other = Mailbox(tmp_path)
    assert other.inherit(10) == []
    living.close()
    assert other.inherit(10) == [letter(1)]


def test_a_full_queue_leaves_the_rest_for_the_next_process(tmp_path: Path) -> None:
    left(tmp_path, *(letter(number, born=float(number)) for number in range(5)))
    first = Mailbox(tmp_path)
    assert len(first.inherit(3)) == 3
    second = Mailbox(tmp_path)
    assert len(second.inherit(3)) == 2


def test_what_is_no_message_is_deleted_and_harms_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"receiver": "webhook", "born": 1, "body": "{}"}')
    box = left(tmp_path / "box", letter(1))
    (box / "msg_torn.json").write_text("{")
    (box / f"msg_{2:032x}.json").write_text("")
    (box / f"msg_{3:032x}.json").write_text("[" * 100_000)
    (box / f"msg_{4:032x}.json").write_text('{"receiver": "webhook", "born": "soon", "body": "{}"}')
    (box / f"msg_{5:032x}.json").write_text('{"receiver": "webhook", "born": 1, "body": "no json"}')
    (box / f"msg_{6:032x}.json").symlink_to(secret)
    (box / f"msg_{7:032x}.new").write_text("{")
    heir = Mailbox(tmp_path / "box")
    assert heir.inherit(100) == [letter(1)]
    assert secret.exists()
    assert not box.exists()


def test_a_box_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"msg_{1:032x}.json").write_text('{"receiver": "webhook", "born": 1, "body": "{}"}')
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "planted.box").symlink_to(elsewhere)
    assert Mailbox(tmp_path / "box").inherit(10) == []
    assert len(list(elsewhere.iterdir())) == 1


def test_a_message_for_a_receiver_that_is_configured_no_more_is_given_up(tmp_path: Path) -> None:
    left(tmp_path, letter(1, receiver="gone"))
    receiver = Receiver.parse("webhook", "https://hooks.example/", [SECRET])
    webhooks = Webhooks([receiver], mailbox=Mailbox(tmp_path))
    assert (webhooks.waiting, webhooks.counts["failed"]) == (0, 1)
    assert not list(tmp_path.rglob("*.json"))


def test_a_disk_that_takes_nothing_costs_the_restart_and_not_the_message(
    tmp_path: Path, back: Received, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spool").write_text("a file where a folder should be")
    tell_one_incident(tmp_path, back)
    assert "will not survive a restart" in caplog.text


def test_a_box_that_is_taken_away_is_told_once_and_the_message_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    box = Mailbox(tmp_path)
    os.rmdir(box._box)
    for number in range(3):
        box.put(letter(number))
    box.remove(letter(1).identifier)
    box.close()
    assert caplog.text.count("would not survive a restart") == 1


def test_a_message_is_kept_before_it_is_sent(tmp_path: Path) -> None:
    receiver = Receiver.parse("webhook", "https://hooks.example/", [SECRET])
    webhooks = Webhooks([receiver], mailbox=Mailbox(tmp_path))
    webhooks.handle(finding("inc-1"))
    (kept,) = tmp_path.rglob("*.json")
    assert json.loads(kept.read_text())["receiver"] == "webhook"
