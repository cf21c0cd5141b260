"""Sign-in by OpenID Connect against an issuer of our own, over real HTTP."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import RSAKey
from pages_read import Seen

PUBLIC = "http://127.0.0.1:8080"
CLIENT = "checkengine"


class FakeIssuer:
    """Signs whatever `claims` says, for the code that it gave."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "k1"})
        self.signing: Any = self.key
        self.changes: dict[str, Any] = {}
        self.forged: Callable[[str], str] = lambda token: token
        self.named: str | None = None
        self.posted: dict[str, str] = {}
        self.nonce = ""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keys = {"keys": [issuer.key.as_dict(private=False)]}
                self.tell(keys if self.path == "/keys" else issuer.configuration())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                issuer.posted = {name: values[0] for name, values in parse_qs(body).items()}
                self.tell({"id_token": issuer.token(), "access_token": "x"})

            def tell(self, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """The test's output is its own."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def configuration(self) -> dict[str, str]:
        paths = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        return {"issuer": self.named or self.address} | {name: self.address + path for name, path in paths.items()}

    def token(self) -> str:
        claims = {"iss": self.address, "aud": CLIENT, "sub": "42", "email": "anna@example.org", "nonce": self.nonce}
        now = 1_790_000_000
        told = claims | {"exp": now + 60, "iat": now, "groups": ["oncall"]} | self.changes
        return self.forged(jwt.encode({"alg": "RS256", "kid": "k1"}, told, self.signing))


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    issuer = FakeIssuer()
    yield issuer
    issuer.server.shutdown()


@pytest.fixture
def client(make_client: Any, issuer: FakeIssuer) -> TestClient:
    return make_client(
        sign_in=True,
        oidc_issuer=issuer.address,
        oidc_client_id=CLIENT,
        public_url=PUBLIC,
        oidc_viewers=("staff",),
        oidc_operators=("oncall",),
        oidc_admins=("owners",),
    )


def begin(client: TestClient, issuer: FakeIssuer) -> dict[str, str]:
    """What the browser was sent to the issuer with."""
    page = Seen(client.get("/sign-in?next=/controls").text)
    sent = client.post("/sign-in/oidc", data={"csrf": page.field("csrf"), "next": page.field("next")})
    assert sent.status_code == 303
    where = urlsplit(sent.headers["location"])
    assert f"{where.scheme}://{where.netloc}{where.path}" == f"{issuer.address}/authorize"
    asked = {name: values[0] for name, values in parse_qs(where.query).items()}
    issuer.nonce = asked["nonce"]
    return asked


def test_whoever_the_issuer_knows_is_signed_in_with_the_role_of_their_group(
    client: TestClient, issuer: FakeIssuer
) -> None:
    asked = begin(client, issuer)
    assert asked["redirect_uri"] == f"{PUBLIC}/sign-in/back"
    back = client.get(f"/sign-in/back?state={asked['state']}&code=c0de")
    assert (back.status_code, back.headers["location"]) == (303, "/controls")
    assert "anna@example.org, operator" in Seen(client.get("/controls").text).text
    verifier = issuer.posted["code_verifier"]
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    assert asked["code_challenge"] == challenge


@pytest.mark.parametrize(
    ("groups", "role"), [(["owners", "oncall"], "admin"), ("staff", "viewer"), (["strangers"], None), (None, None)]
)
def test_a_group_decides_the_role_and_a_stranger_has_none(
    client: TestClient, issuer: FakeIssuer, groups: Any, role: str | None
) -> None:
    issuer.changes = {"groups": groups}
    asked = begin(client, issuer)
    back = client.get(f"/sign-in/back?state={asked['state']}&code=c0de")
    assert back.status_code == (303 if role else 403)
    if role:
        assert f", {role}" in Seen(client.get("/").text).text


@pytest.mark.parametrize(
    "changes",
    [{"iss": "https://evil.example"}, {"aud": "another"}, {"nonce": "old"}, {"exp": 1_789_999_000}, {"sub": None}],
)
def test_an_identity_that_is_not_exactly_right_lets_nobody_in(
    client: TestClient, issuer: FakeIssuer, changes: dict[str, Any]
) -> None:
    asked = begin(client, issuer)
    issuer.changes = changes
    assert client.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 403
    assert client.get("/").status_code == 303


def test_a_signature_by_another_key_or_by_the_public_one_as_a_secret_is_refused(
    client: TestClient, issuer: FakeIssuer
) -> None:
    asked = begin(client, issuer)
    issuer.signing = RSAKey.generate_key(2048)
    assert client.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 403
    asked = begin(client, issuer)
    issuer.signing = issuer.key
    issuer.forged = lambda token: with_public_key_as_secret(token, issuer.key.as_pem(private=False))
    assert client.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 403


def test_an_identity_that_nobody_signed_is_refused(client: TestClient, issuer: FakeIssuer) -> None:
    asked = begin(client, issuer)
    issuer.forged = lambda token: f"{NONE}.{token.split('.')[1]}."
    assert client.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 403


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


NONE, HMAC = encoded(b'{"alg":"none"}'), encoded(b'{"alg":"HS256","kid":"k1"}')


def with_public_key_as_secret(token: str, pem: bytes) -> str:
    message = f"{HMAC}.{token.split('.')[1]}"
    return f"{message}.{encoded(hmac.digest(pem, message.encode(), 'sha256'))}"


def test_a_state_is_the_browsers_own_good_once_and_not_for_long(
    client: TestClient, issuer: FakeIssuer, make_client: Any, clock: Any
) -> None:
    asked = begin(client, issuer)
    stranger = TestClient(client.app, PUBLIC, follow_redirects=False, client=("127.0.0.1", 2))
    assert stranger.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 400
    assert client.get("/sign-in/back?state=&code=c0de").status_code == 400
    assert client.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 303
    client.cookies.set("checkengine_flow", asked["state"])
    assert client.get(f"/sign-in/back?state={asked['state']}&code=c0de").status_code == 400
    late = begin(client, issuer)
    clock.now += 601
    assert client.get(f"/sign-in/back?state={late['state']}&code=c0de").status_code == 400


def test_a_flow_that_has_begun_is_no_session(client: TestClient, issuer: FakeIssuer) -> None:
    asked = begin(client, issuer)
    client.cookies.set("checkengine_session", asked["state"])
    assert client.get("/").status_code == 303


def test_an_issuer_that_says_it_is_another_one_or_is_silent_is_told_in_a_sentence(
    client: TestClient, issuer: FakeIssuer
) -> None:
    issuer.named = "https://evil.example"
    page = Seen(client.get("/sign-in").text)
    answer = client.post("/sign-in/oidc", data={"csrf": page.field("csrf"), "next": "/"})
    assert answer.status_code == 409
    assert "another issuer" in answer.text
    issuer.server.shutdown()
    issuer.server.server_close()
    began = time.monotonic()
    answer = client.post("/sign-in/oidc", data={"csrf": page.field("csrf"), "next": "/"})
    assert answer.status_code == 409
    assert "does not answer" in answer.text
    assert time.monotonic() - began < 12
