"""Webhooks: signed, sent again with pauses, bounded, and never led into the network behind the sender."""

from __future__ import annotations

import base64
import ipaddress
import itertools
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from monitoring import Received

from checkengine.dashboards.safe_post import Answer, RefusedAddressError, Target, judged, post
from checkengine.dashboards.settings import WebhookSettings
from checkengine.dashboards.webhook_format import (
    Alert,
    SignatureError,
    payload,
    secret_bytes,
    signature,
    signed_headers,
    verify,
)
from checkengine.dashboards.webhooks import GIVE_UP, LONGEST_PAUSE, Receiver, Webhooks, WebhookThread
from checkengine.guards.errors import UserError
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity

SECRET = "whsec_" + "YWJj" * 8
LOOPBACK = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")]


def raised(incident: str = "inc-1", primary: bool = True) -> FindingRaised:
    return FindingRaised(Finding("logits.nonfinite", "s", Severity.ERROR, 5, 0, "nonfinite"), incident, 100.0, primary)


class Stage:
    """Webhooks with a clock of their own and a receiver that answers as the test says."""

    def __init__(self, *answers: int | Exception, most_waiting: int = 1000, receivers: int = 1) -> None:
        self.now = 1000.0
        self.answers = list(answers)
        self.sent: list[tuple[float, dict[str, str], bytes]] = []
        names = [Receiver.parse(f"r{n}", f"https://hooks.example/{n}", [SECRET]) for n in range(receivers)]
        self.webhooks = Webhooks(
            names,
            external_url="https://ce.example/",
            most_waiting=most_waiting,
            clock=lambda: self.now,
            chance=lambda: 0.5,
            send=self.send,
        )

    def send(self, target: Target, body: bytes, headers: Any) -> Answer:
        self.sent.append((self.now, dict(headers), body))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer, "100" if answer == 429 else "")

    def run_until_empty(self) -> None:
        while self.webhooks.waiting:
            self.webhooks.send_due()
            if self.webhooks.waiting:
                self.now = self.webhooks._waiting[0].due


def test_the_first_finding_of_an_incident_is_told_once_and_evidence_never() -> None:
    stage = Stage()
    for event in (raised(), raised(), raised(primary=False), raised("inc-2"), raised("")):
        stage.webhooks.handle(event)
    assert stage.webhooks.send_due() == 2
    alerts = [json.loads(body)["alerts"][0] for _, _, body in stage.sent]
    assert [alert["labels"]["incident"] for alert in alerts] == ["inc-1", "inc-2"]
    assert alerts[0]["annotations"]["dashboard_url"] == "https://ce.example/incidents/inc-1"
    assert stage.webhooks.counts["delivered"] == 2


def test_the_payload_is_alertmanagers_version_4() -> None:
    alert = Alert("i", "k", {"alertname": "A", "kind": "k"}, {"summary": "s"}, 0.25, None, "https://x")
    told = payload([alert, Alert("j", "k", {"alertname": "A", "kind": "k", "guard": "g"}, {"summary": "s"}, 1.0, 2.5)])
    assert told["version"] == "4"
    assert told["groupKey"] == '{}:{alertname="A", kind="k"}'
    assert told["status"] == "firing"
    assert told["commonLabels"] == {"alertname": "A", "kind": "k"}
    first, second = told["alerts"]
    assert (first["status"], first["startsAt"]) == ("firing", "1970-01-01T00:00:00.250Z")
    assert (first["endsAt"], first["generatorURL"]) == ("0001-01-01T00:00:00Z", "https://x")
    assert (second["status"], second["endsAt"]) == ("resolved", "1970-01-01T00:00:02.500Z")
    assert first["fingerprint"] != second["fingerprint"]


def test_the_signature_is_that_of_the_standards_own_example() -> None:
    # Its secret is shorter than the standard itself asks for.
    key = base64.b64decode("plJ3nmyCDGBKInavdOK15jsl")
    body = b'{"event_type":"ping","data":{"success":true}}'
    made = signature(key, "msg_loFOjxBNrRLzqYUf", 1731705121, body)
    assert made == "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


def test_a_message_is_valid_under_either_secret_while_one_replaces_the_other() -> None:
    old, new, other = (secret_bytes("whsec_" + letters * 8) for letters in ("YWJj", "ZGVm", "Z2hp"))
    headers = signed_headers([old, new], "msg_1", 1000, b"{}")
    for key in (old, new):
        verify([key], headers, b"{}", 1010.0)
    with pytest.raises(SignatureError, match="another secret, or changed"):
        verify([other], headers, b"{}", 1010.0)
    with pytest.raises(SignatureError, match="another secret, or changed"):
        verify([old], headers, b"{ }", 1010.0)


@pytest.mark.parametrize("now", [600.0, 1400.0])
def test_a_message_that_was_recorded_and_sent_again_is_refused(now: float) -> None:
    key = secret_bytes(SECRET)
    with pytest.raises(SignatureError, match="signed 400 s from now"):
        verify([key], signed_headers([key], "msg_1", 1000, b"{}"), b"{}", now)


@pytest.mark.parametrize("headers", [{}, {"webhook-id": "a", "webhook-timestamp": "soon", "webhook-signature": "v1,"}])
def test_a_message_without_a_signature_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(SignatureError, match="has no webhook-id"):
        verify([secret_bytes(SECRET)], headers, b"{}", 1000.0)


@pytest.mark.parametrize("secret", ["", "YWJj" * 8, "whsec_short", "whsec_" + "YWJj" * 40, "whsec_!!!!" * 8])
def test_a_secret_that_is_none_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(UserError, match="24 to 64 bytes") as caught:
        secret_bytes(secret)
    assert not secret or secret not in str(caught.value)


def test_attempts_come_with_growing_pauses_under_one_id_and_a_fresh_signature() -> None:
    stage = Stage(500, OSError("refused"), TimeoutError(), 503, 200)
    stage.webhooks.handle(raised())
    stage.run_until_empty()
    times = [time for time, _, _ in stage.sent]
    assert [after - before for before, after in itertools.pairwise(times)] == [5.0, 10.0, 20.0, 40.0]
    assert len({headers["webhook-id"] for _, headers, _ in stage.sent}) == 1
    for time, headers, body in stage.sent:
        verify([secret_bytes(SECRET)], headers, body, time)
    assert dict(stage.webhooks.counts) == {"delivered": 1, "failed": 0, "dropped": 0, "retried": 4}


def test_a_message_is_given_up_after_a_day() -> None:
    stage = Stage(*[500] * 1000)
    stage.webhooks.handle(raised())
    stage.run_until_empty()
    times = [time for time, _, _ in stage.sent]
    assert times[-1] - times[0] <= GIVE_UP
    assert max(after - before for before, after in itertools.pairwise(times)) == LONGEST_PAUSE
    assert 30 < len(times) < 50
    assert stage.webhooks.counts["failed"] == 1


def test_a_receiver_that_asks_for_patience_gets_it() -> None:
    stage = Stage(429, 200)
    stage.webhooks.handle(raised())
    stage.run_until_empty()
    assert stage.sent[1][0] - stage.sent[0][0] == 100.0


@pytest.mark.parametrize("answer", [301, 400, 401, 404, 410, RefusedAddressError("inside")])
def test_a_refusal_that_will_not_get_better_is_not_tried_again(answer: Any) -> None:
    stage = Stage(answer)
    stage.webhooks.handle(raised())
    stage.run_until_empty()
    assert len(stage.sent) == 1
    assert stage.webhooks.counts["failed"] == 1


def test_a_full_queue_drops_the_newest_counts_it_and_never_blocks() -> None:
    stage = Stage(most_waiting=3)
    for number in range(10):
        stage.webhooks.handle(raised(f"inc-{number}"))
    assert (stage.webhooks.waiting, stage.webhooks.counts["dropped"]) == (3, 7)
    stage.run_until_empty()
    assert [json.loads(body)["alerts"][0]["labels"]["incident"] for _, _, body in stage.sent] == [
        "inc-0",
        "inc-1",
        "inc-2",
    ]


def test_every_receiver_gets_its_own_message() -> None:
    stage = Stage(500, 200, 200, receivers=2)
    stage.webhooks.handle(raised())
    stage.run_until_empty()
    assert len({headers["webhook-id"] for _, headers, _ in stage.sent}) == 2
    assert stage.webhooks.counts["delivered"] == 2


PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:a00:1", "64:ff9b::7f00:1",
    "2002:7f00:1::", "2001:db8::1", "ff02::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_is_refused_in_every_way_of_writing_it(address: str) -> None:
    with pytest.raises(RefusedAddressError, match="allowed_networks"):
        judged([address], [])
    with pytest.raises(RefusedAddressError):
        judged(["93.184.215.14", address], [])


def test_a_private_network_that_is_listed_may_be_sent_to_and_no_other() -> None:
    assert judged(["10.1.2.3"], [ipaddress.ip_network("10.0.0.0/8")]) == "10.1.2.3"
    with pytest.raises(RefusedAddressError):
        judged(["10.1.2.3", "192.168.0.1"], [ipaddress.ip_network("10.0.0.0/8")])
    assert judged(["93.184.215.14"], []) == "93.184.215.14"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://hooks.example:99999/",
        "http://user:secret@hooks.example/",
        "http://hooks.example/a b",
        "http://hooks.example/\r\nhost: other",
    ],
)
def test_what_is_no_plain_url_is_refused_and_no_password_repeated(url: str) -> None:
    with pytest.raises(RefusedAddressError) as caught:
        Target.parse(url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://2130706433/", "http://0x7f000001/", "http://127.1/", "http://017700000001/"])
def test_an_address_in_disguise_is_judged_by_what_it_resolves_to(url: str) -> None:
    with pytest.raises((RefusedAddressError, OSError)):
        post(Target.parse(url), b"{}", {}, timeout=1.0)


@pytest.fixture
def received() -> Iterator[Received]:
    server = Received()
    yield server
    server.close()


def test_a_name_that_answers_differently_a_second_time_leads_nowhere(received: Received) -> None:
    """DNS rebinding: the address that was judged is the one that is connected to, and it is asked for once."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    target = Target.parse(f"http://hooks.example:{received.port}/x?y=1")
    assert post(target, b"{}", {}, timeout=5.0, allowed=LOOPBACK, resolve=resolve).status == 200
    assert asked == ["hooks.example"]
    (path, headers, _) = received.posts[0]
    assert (path, headers["host"]) == ("/x?y=1", f"hooks.example:{received.port}")


def test_a_redirect_is_not_followed() -> None:
    server = Received(status=302)
    try:
        target = Target.parse(f"http://127.0.0.1:{server.port}/")
        assert post(target, b"{}", {}, timeout=5.0, allowed=LOOPBACK).status == 302
        assert len(server.posts) == 1
    finally:
        server.close()


def answering(serve: Callable[[socket.socket], None]) -> int:
    """A port on which one connection is served in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connection, _ = listener.accept()
        serve(connection)
        listener.close()

    threading.Thread(target=run, daemon=True).start()
    return int(listener.getsockname()[1])


def silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def dripping(connection: socket.socket) -> None:
    """A byte of a header that never ends, whenever the sender has hung up not yet."""
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
    connection.settimeout(0.05)
    while True:
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            try:
                connection.sendall(b"a")
            except OSError:
                return
        except OSError:
            return


def garbage(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"\x00\xff no http \r\n\r\n")
    connection.close()


@pytest.mark.parametrize("serve", [silent, dripping, garbage])
def test_a_receiver_that_is_silent_drips_or_talks_nonsense_costs_no_more_than_the_timeout(
    serve: Callable[[socket.socket], None],
) -> None:
    target = Target.parse(f"http://127.0.0.1:{answering(serve)}/")
    with pytest.raises(OSError):  # noqa: PT011
        post(target, b"{}", {}, timeout=0.3, allowed=LOOPBACK)


def test_the_thread_sends_what_comes_and_ends_when_closed(received: Received) -> None:
    receiver = Receiver.parse("r", f"http://127.0.0.1:{received.port}/", [SECRET])
    webhooks = Webhooks([receiver], allowed=LOOPBACK)
    thread = WebhookThread(webhooks)
    webhooks.handle(raised())
    received.wait_for(lambda bodies: len(bodies) == 1)
    webhooks.handle(raised("inc-2"))
    thread.close()
    assert len(received.bodies()) == 2
    webhooks.handle(raised("inc-3"))
    assert webhooks.counts["dropped"] == 1


def test_settings_refuse_a_url_without_a_secret_and_what_is_no_network() -> None:
    with pytest.raises(ValueError, match="needs a secret"):
        WebhookSettings(url="https://hooks.example/")
    with pytest.raises(ValueError, match="allowed_networks"):
        WebhookSettings(allowed_networks=("10.0.0.0/99",))
    assert WebhookSettings(allowed_networks=("10.0.0.0/8",)).url is None
