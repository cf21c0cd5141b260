"""Sign in by OpenID Connect: the authorization code flow with PKCE, a nonce and a state that lives in the catalog.

The issuer comes from the configuration alone, and nothing that a request brings makes the dashboard connect anywhere.
Needs the extra `oidc` (httpx, joserfc).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from checkengine.dashboards.web.people import Role
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.guards.errors import UserError
from checkengine.guards.hosts import is_loopback

TIMEOUT = 10.0
MOST_BYTES = 1 << 20
KEYS_SECONDS = 3600.0
SKEW = 60
ALGORITHMS = ["RS256", "ES256", "PS256", "EdDSA"]
"""Signed by the issuer's own key; never `none`, and never an HMAC with what a client may know."""


class OidcError(UserError):
    """The issuer cannot be used, or what it said is not to be believed."""


@dataclass(frozen=True, slots=True)
class Started:
    """What must be remembered until the browser comes back; the verifier and the nonce never reach it."""

    address: str
    state: str
    verifier: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    subject: str
    role: Role


Get = Callable[[str], Mapping[str, Any]]
Post = Callable[[str, Mapping[str, str], tuple[str, str] | None], Mapping[str, Any]]


@dataclass(slots=True)
class Issuer:
    """Thread-safe as far as its two HTTP calls are; a fresh discovery may happen twice."""

    settings: DashboardSettings
    get: Get
    post: Post
    clock: Callable[[], float] = time.time
    _found: dict[str, Any] = field(default_factory=dict)
    _keys: tuple[float, Any] = (float("-inf"), None)

    @property
    def redirect(self) -> str:
        return f"{self.settings.public_url}/sign-in/back"

    def start(self) -> Started:
        """Where to send the browser. OidcError where the issuer does not answer."""
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.settings.oidc_client_id,
            "redirect_uri": self.redirect,
            "scope": "openid profile email",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return Started(f"{self._endpoint('authorization_endpoint')}?{urlencode(asked)}", state, verifier, nonce)

    def finish(self, code: str, started: Mapping[str, str]) -> Identity:
        """Who came back. OidcError for whatever is not exactly as it must be."""
        asked = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect,
            "client_id": self.settings.oidc_client_id,
            "code_verifier": started["verifier"],
        }
        secret = secret_of(self.settings)
        told = self.post(
            self._endpoint("token_endpoint"), asked, (self.settings.oidc_client_id, secret) if secret else None
        )
        token = told.get("id_token")
        if not isinstance(token, str):
            raise OidcError("the issuer gave no identity")
        return self.identity(self._claims(token, started["nonce"]))

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        """OidcError for somebody who is in none of the groups."""
        chosen = self.settings
        told = claims.get(chosen.oidc_role_claim)
        groups = {str(each) for each in told} if isinstance(told, list) else {told} if isinstance(told, str) else set()
        named = str(claims.get("email") or claims.get("preferred_username") or claims["sub"])[:128]
        for role, wanted in ((Role.ADMIN, chosen.oidc_admins), (Role.OPERATOR, chosen.oidc_operators)):
            if groups & set(wanted):
                return Identity(named, f"{chosen.oidc_issuer}#{claims['sub']}"[:256], role)
        if chosen.oidc_viewers and not groups & set(chosen.oidc_viewers):
            raise OidcError("you are in none of the groups that may look: ask whoever runs this dashboard")
        return Identity(named, f"{chosen.oidc_issuer}#{claims['sub']}"[:256], Role.VIEWER)

    def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        registry = jwt.JWTClaimsRegistry(
            now=int(self.clock()),
            leeway=SKEW,
            iss={"essential": True, "value": str(self.settings.oidc_issuer)},
            aud={"essential": True, "value": self.settings.oidc_client_id},
            nonce={"essential": True, "value": nonce},
            sub={"essential": True},
            exp={"essential": True},
        )
        try:
            decoded = jwt.decode(token, self._key_set(), algorithms=ALGORITHMS)
            registry.validate(decoded.claims)
        except (JoseError, ValueError) as error:
            raise OidcError(f"the identity is not to be believed ({type(error).__name__})") from None
        return decoded.claims

    def _key_set(self) -> Any:
        from joserfc.jwk import KeySet

        when, keys = self._keys
        if keys is None or self.clock() - when > KEYS_SECONDS:
            keys = KeySet.import_key_set(dict(self.get(self._endpoint("jwks_uri"))))  # type: ignore[arg-type]
            self._keys = (self.clock(), keys)
        return keys

    def _endpoint(self, name: str) -> str:
        if not self._found:
            issuer = str(self.settings.oidc_issuer)
            found = dict(self.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
            if found.get("issuer") != issuer:
                raise OidcError(f"{issuer} says that it is another issuer: check [dashboard] oidc_issuer")
            self._found = found
        address = str(self._found.get(name, ""))
        host = urlsplit(address)
        if host.scheme != "https" and not (host.scheme == "http" and is_loopback(host.hostname or "")):
            raise OidcError(f"the issuer's {name} is no https address")
        return address


def secret_of(settings: DashboardSettings) -> str:
    """Empty for a public client."""
    if settings.oidc_client_secret_file is None:
        return ""
    try:
        return settings.oidc_client_secret_file.read_text().strip()
    except OSError as error:
        raise OidcError(f"{settings.oidc_client_secret_file} cannot be read: {error.strerror}") from None


def issuer_of(settings: DashboardSettings, clock: Callable[[], float] = time.time) -> Issuer | None:
    """None where none is configured. OidcError where the extra is missing."""
    if settings.oidc_issuer is None:
        return None
    try:
        import httpx
        import joserfc
    except ImportError as error:
        raise OidcError(f"sign-in by OIDC needs checkengine[oidc] ({error})") from None
    del joserfc
    client = httpx.Client(timeout=TIMEOUT, follow_redirects=False, trust_env=True)

    def answer(response: httpx.Response) -> Mapping[str, Any]:
        if response.status_code != 200 or len(response.content) > MOST_BYTES:
            raise OidcError(f"the issuer answers {response.status_code}")
        try:
            told = response.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise OidcError("the issuer answers no JSON object")
        return told

    def get(address: str) -> Mapping[str, Any]:
        try:
            return answer(client.get(address))
        except httpx.HTTPError as error:
            raise OidcError(f"the issuer does not answer ({type(error).__name__})") from None

    def post(address: str, fields: Mapping[str, str], auth: tuple[str, str] | None) -> Mapping[str, Any]:
        try:
            return answer(client.post(address, data=dict(fields), auth=auth or httpx.USE_CLIENT_DEFAULT))
        except httpx.HTTPError as error:
            raise OidcError(f"the issuer does not answer ({type(error).__name__})") from None

    return Issuer(settings, get, post, clock)
