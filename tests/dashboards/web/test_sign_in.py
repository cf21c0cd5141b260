from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from pages_read import Seen
from pydantic import ValidationError

from checkengine.dashboards.web.auth import NoSignInError, local_path, needs_sign_in
from checkengine.dashboards.web.csrf import same_site
from checkengine.dashboards.web.headers import HEADERS
from checkengine.dashboards.web.hosts import HostCheck
from checkengine.dashboards.web.people import Role
from checkengine.dashboards.web.rate_limit import RateLimit
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.dashboards.web.tokens import TokenError, TokenFile, digest_of, new_token
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.people import SessionRow, UserRow


@pytest.fixture
def locked(make_client: Any, tokens: dict[str, str]) -> TestClient:
    return make_client(sign_in=True, token_file=tokens["file"], requests_per_second=10_000)


def sign_in(client: TestClient, token: str, **more: str) -> Any:
    csrf = Seen(client.get("/sign-in").text).field("csrf")
    return client.post("/sign-in", data={"csrf": csrf, "token": token, "next": "/incidents", **more})


def test_a_loopback_address_asks_nobody_and_another_one_refuses_to_listen_without_a_sign_in(
    client: TestClient, tokens: dict[str, str]
) -> None:
    assert client.get("/").status_code == 200
    assert not needs_sign_in(DashboardSettings(host="::1"))
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(NoSignInError, match=r"token_file .* or oidc_issuer"):
            needs_sign_in(DashboardSettings(host=host))
        assert needs_sign_in(DashboardSettings(host=host, token_file=tokens["file"]))


def test_oidc_without_its_other_half_is_no_configuration() -> None:
    with pytest.raises(ValidationError, match="oidc_client_id"):
        DashboardSettings(oidc_issuer="https://id.example.org")


def test_a_token_signs_in_and_the_page_that_was_asked_for_follows(locked: TestClient, tokens: dict[str, str]) -> None:
    asked = locked.get("/incidents?status=all")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/sign-in?next=%2Fincidents%3Fstatus%3Dall"
    form = Seen(locked.get(asked.headers["location"]).text)
    done = locked.post(
        "/sign-in", data={"csrf": form.field("csrf"), "token": tokens["viewer"], "next": form.field("next")}
    )
    assert (done.status_code, done.headers["location"]) == (303, "/incidents?status=all")
    assert "viewer-1, viewer" in Seen(locked.get("/").text).text


def test_the_cookie_is_new_at_each_sign_in_and_only_its_hash_is_kept(
    locked: TestClient, tokens: dict[str, str], catalog: Catalog
) -> None:
    cookies = []
    for _ in range(2):
        header = sign_in(locked, tokens["admin"]).headers["set-cookie"]
        assert re.search("HttpOnly; Max-Age=43200; Path=/; SameSite=lax", header)
        cookies.append(re.search("checkengine_session=([^;]+)", header)[1])  # type: ignore[index]
    assert cookies[0] != cookies[1]
    with catalog.reading() as session:
        assert {row.id for row in session.scalars(sa.select(SessionRow))} == {digest_of(cookie) for cookie in cookies}


def test_behind_https_cookies_are_secure_and_bound_to_the_host(make_client: Any, tokens: dict[str, str]) -> None:
    client = make_client(sign_in=True, token_file=tokens["file"], public_url="https://check.example.org")
    client.base_url = "https://check.example.org"
    header = sign_in(client, tokens["admin"]).headers["set-cookie"]
    assert header.startswith("__Host-checkengine_session=")
    assert header.endswith("; Secure")
    assert client.get("/").headers["strict-transport-security"]


def test_a_cookie_that_somebody_planted_is_no_session(locked: TestClient, tokens: dict[str, str]) -> None:
    locked.cookies.set("checkengine_session", "planted")
    assert locked.get("/").status_code == 303
    assert "planted" not in sign_in(locked, tokens["viewer"]).headers["set-cookie"]


def test_an_open_session_has_the_role_that_its_token_has_now_and_ends_with_it(
    locked: TestClient, tokens: dict[str, str]
) -> None:
    sign_in(locked, tokens["admin"])
    assert "admin-1, admin" in Seen(locked.get("/").text).text
    file = Path(tokens["file"])
    file.write_text(file.read_text().replace("admin-1 admin ", "admin-1 viewer "))
    assert "admin-1, viewer" in Seen(locked.get("/").text).text
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "admin-1" not in line) + "\n")
    assert locked.get("/").status_code == 303


def test_a_session_ends_by_sign_out_by_its_age_by_idleness_and_when_its_user_is_disabled(
    locked: TestClient, tokens: dict[str, str], clock: Any, catalog: Catalog
) -> None:
    sign_in(locked, tokens["operator"])
    csrf = Seen(locked.get("/controls").text).field("csrf")
    old = dict(locked.cookies)
    assert locked.post("/sign-out", data={"csrf": csrf}).status_code == 303
    locked.cookies.update(old)
    assert locked.get("/").status_code == 303
    sign_in(locked, tokens["operator"])
    clock.now += 2 * 3600
    assert locked.get("/").status_code == 200
    clock.now += 3.5 * 3600
    assert locked.get("/").status_code == 303, "idle for more than a quarter of its hours"
    sign_in(locked, tokens["operator"])
    for _ in range(6):
        clock.now += 1.9 * 3600
        assert locked.get("/").status_code == 200
    clock.now += 3600
    assert locked.get("/").status_code == 303, "older than twelve hours"
    sign_in(locked, tokens["operator"])
    with catalog.writing() as session:
        session.execute(sa.update(UserRow).where(UserRow.name == "operator-1").values(disabled=clock.now))
    assert locked.get("/").status_code == 303
    assert sign_in(locked, tokens["operator"]).headers["location"] == "/sign-in"


def test_wrong_tokens_are_counted_and_then_refused_unseen(make_client: Any, tokens: dict[str, str]) -> None:
    client = make_client(sign_in=True, token_file=tokens["file"], sign_ins_per_minute=3)
    assert [sign_in(client, f"wrong {number}").status_code for number in range(5)] == [401, 401, 401, 429, 429]
    late = sign_in(client, tokens["admin"])
    assert late.status_code == 429, "a right one tells nothing either"
    assert int(late.headers["retry-after"]) >= 1
    bearer = client.get("/", headers={"authorization": "Bearer wrong", "accept": "*/*"})
    assert bearer.status_code == 429


def test_a_right_token_is_never_counted(make_client: Any, tokens: dict[str, str]) -> None:
    client = make_client(sign_in=True, token_file=tokens["file"], sign_ins_per_minute=2)
    for _ in range(20):
        assert client.get("/", headers={"authorization": f"Bearer {tokens['viewer']}"}).status_code == 200


def test_a_client_that_asks_too_often_waits_and_says_so(make_client: Any) -> None:
    client = make_client(requests_per_second=1)
    codes = [client.get("/history").status_code for _ in range(12)]
    assert codes == [200] * 10 + [429] * 2


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    limit = RateLimit(2.0, 4.0, clock=lambda: now[0])
    assert [limit.wait("a") for _ in range(4)] == [0.0] * 4
    assert limit.wait("a") == 0.5
    assert limit.wait("b") == 0.0
    now[0] = 0.5
    assert limit.wait("a") == 0.0
    now[0] = 1e9
    assert [limit.wait("a", 4.0), limit.wait("a", 1.0)] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("role", "allowed"),
    [("viewer", {"/views"}), ("operator", {"/views", "/incidents", "/controls", "/replays", "/bundle/hold"}),
     ("admin", {"/views", "/incidents", "/controls", "/replays", "/bundle/hold", "/bundle/erase", "/incident/text"})],
)  # fmt: skip
def test_each_role_does_what_it_may_and_no_more(
    locked: TestClient, tokens: dict[str, str], role: str, allowed: set[str]
) -> None:
    sign_in(locked, tokens[role])
    csrf = Seen(locked.get("/incidents").text).field("csrf")
    for address in ("/views", "/incidents", "/controls", "/replays", "/bundle/hold", "/bundle/erase", "/incident/text"):
        answer = locked.post(address, data={"csrf": csrf})
        assert (answer.status_code == 403) == (address not in allowed), (role, address, answer.status_code)


def test_a_viewer_sees_no_button_that_would_be_refused(locked: TestClient, tokens: dict[str, str]) -> None:
    sign_in(locked, tokens["viewer"])
    for address in ("/controls", "/incidents"):
        forms = [form["action"] for form in Seen(locked.get(address).text).forms if form.get("method") == "post"]
        assert set(forms) <= {"/sign-out", "/views"}, address


def test_a_change_without_the_pages_own_token_is_refused(client: TestClient) -> None:
    for fields in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ä"}):
        assert client.post("/controls", data={**fields, "order": "brake pull"}).status_code == 403


def test_a_token_of_another_browser_is_no_proof(make_client: Any) -> None:
    first, second = make_client(), make_client()
    csrf = Seen(first.get("/controls").text).field("csrf")
    second.get("/controls")
    assert second.post("/controls", data={"csrf": csrf, "order": "brake pull"}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
     {"sec-fetch-site": "same-site"}, {"origin": "http://127.0.0.1:9999"}],
)  # fmt: skip
def test_a_change_from_a_strangers_page_is_refused_even_with_the_token(client: TestClient, headers: Any) -> None:
    csrf = Seen(client.get("/controls").text).field("csrf")
    assert client.post("/controls", data={"csrf": csrf, "order": "brake pull"}, headers=headers).status_code == 403
    assert client.post("/controls", data={"csrf": csrf, "order": "brake pull"}).status_code == 303


def test_the_public_address_is_an_origin_of_ours() -> None:
    headers: Any = {"origin": "https://check.example.org", "host": "10.0.0.7:8080"}
    assert same_site(headers, "https://check.example.org")
    assert not same_site(headers, None)


def test_a_bearer_token_needs_no_form_token_since_no_page_can_send_one(
    locked: TestClient, tokens: dict[str, str]
) -> None:
    signed = {"authorization": f"Bearer {tokens['operator']}"}
    assert locked.post("/controls", data={"order": "brake pull"}, headers=signed).status_code == 303


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1:8080", True), ("localhost", True), ("[::1]:8080", True), ("check.example", True),
     ("evil.example", False), ("127.0.0.1.evil.example", False), ("", False), ("a@b", False), ("localhost\t", False)],
)  # fmt: skip
def test_a_strangers_name_that_points_here_is_refused(host: str, allowed: bool) -> None:
    """DNS rebinding."""
    check = HostCheck(None, loopback=True, names=["check.example"])  # type: ignore[arg-type]
    assert check.allows({"headers": [(b"host", host.encode())]}) is allowed


def test_a_request_with_two_hosts_or_none_is_refused(client: TestClient) -> None:
    check = HostCheck(None, loopback=True)  # type: ignore[arg-type]
    assert not check.allows({"headers": []})
    assert not check.allows({"headers": [(b"host", b"localhost"), (b"host", b"localhost")]})
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "\\\\evil",
        "/a\nb",
        "",
        "evil",
    ],
)
def test_a_sign_in_leads_nowhere_else(target: str) -> None:
    assert local_path(target) == "/"


def test_every_answer_forbids_frames_inline_scripts_and_foreign_addresses(client: TestClient) -> None:
    for address in ("/", "/static/page.js", "/no-such-page", "/healthz"):
        headers = client.get(address).headers
        for name, value in HEADERS.items():
            if name != "cache-control":
                assert headers[name] == value, (address, name)
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert client.get("/").headers["cache-control"] == "no-store"


def test_a_page_that_fails_tells_no_inside(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("checkengine.dashboards.web.history_page.audit_log", fails)
    quiet = TestClient(client.app, "http://127.0.0.1:8080", raise_server_exceptions=False, client=("127.0.0.1", 1))
    answer = quiet.get("/history", headers={"accept": "text/html"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "This page failed" in answer.text


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(new_token("anna", "admin")[1])
    file.chmod(0o644)
    with pytest.raises(TokenError, match="chmod 600"):
        TokenFile(file)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("anna admin secret-token", "not `NAME ROLE sha256:HEX`"),
        ("anna king sha256:" + "0" * 64, "no role"),
        ("", "names nobody"),
    ],
)
def test_a_token_file_with_a_line_that_is_none_is_refused_without_telling_it(
    tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(line + "\n")
    file.chmod(0o600)
    with pytest.raises(TokenError, match=message) as told:
        TokenFile(file)
    assert "secret-token" not in str(told.value)


def test_two_lines_of_one_name_are_two_tokens_and_a_change_holds_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    (old, first), (new, second) = new_token("anna", "admin"), new_token("anna", "viewer")
    file.write_text(first)
    file.chmod(0o600)
    tokens = TokenFile(file)
    assert tokens.holder(new) is None
    file.write_text(f"{first}\n{second}\n")
    assert (tokens.holder(old).role, tokens.holder(new).role) == (Role.ADMIN, Role.VIEWER)  # type: ignore[union-attr]
    file.write_text(f"{second}\n# the old one is gone\n\n")
    assert tokens.holder(old) is None
    file.unlink()
    with pytest.raises(TokenError, match="cannot be read"):
        tokens.holder(new)


def test_a_token_file_that_vanishes_lets_nobody_in_and_no_page_fails(
    locked: TestClient, tokens: dict[str, str]
) -> None:
    Path(tokens["file"]).unlink()
    assert sign_in(locked, tokens["admin"]).status_code == 401


def test_a_name_with_spaces_gets_no_token() -> None:
    for name, role in (("a b", "admin"), ("", "admin"), ("x" * 65, "viewer"), ("anna", "king")):
        with pytest.raises(ValueError, match=r"cannot be a name|no role"):
            new_token(name, role)
