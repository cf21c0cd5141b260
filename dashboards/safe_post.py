"""POST to an address that somebody configured, without being led into the network behind it.

Names are resolved once, every address is judged, and the connection goes to the address that was judged: a name that
answers differently a second time (DNS rebinding) leads nowhere. Redirects are not followed, proxies not used.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from checkengine.guards.errors import UserError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Sequence[str]]
SCHEMES = {"http": 80, "https": 443}
MOST_ANSWER_BYTES = 4096
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RefusedAddressError(UserError):
    """The address is not one that may be sent to."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be sent to."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """RefusedAddressError for what is no plain http(s) URL; the message repeats neither user nor password."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise RefusedAddressError("a webhook's URL cannot be read") from None
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise RefusedAddressError(f"a webhook's URL begins with http:// or https://, not {parts.scheme[:20]!r}")
        if parts.username or parts.password:
            raise RefusedAddressError("a webhook's URL holds no user or password: the signature says who sends")
        host = parts.hostname.encode("idna").decode() if not parts.hostname.isascii() else parts.hostname
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if any(ord(letter) <= 32 or ord(letter) == 127 for letter in path + host):
            raise RefusedAddressError("a webhook's URL holds a space or a control character")
        return cls(parts.scheme, host, port or SCHEMES[parts.scheme], path)


def resolve(host: str, port: int) -> list[str]:
    """Every address of a name; OSError where there is none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def judged(addresses: Sequence[str], allowed: Sequence[Network]) -> str:
    """The first address, where all of them may be sent to: a name that also leads inside is refused."""
    if not addresses:
        raise OSError("the name has no address")
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        if not any(address.version == network.version and address in network for network in allowed):
            refuse_private(address)
    return addresses[0]


def refuse_private(address: Address) -> None:
    inner = embedded(address)
    for each in (address, inner) if inner is not None else (address,):
        if not each.is_global or each.is_multicast:
            raise RefusedAddressError(
                f"webhooks may not go to {address}, which is no public address; list its network in [webhooks] "
                "allowed_networks if they shall"
            )


def embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


class _Plain(http.client.HTTPConnection):
    """Connects to an address that was judged, whatever the host is called."""

    def __init__(self, target: Target, address: str, timeout: float) -> None:
        super().__init__(target.host, target.port, timeout=timeout)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)


class _Encrypted(_Plain):
    def connect(self) -> None:
        super().connect()
        context = ssl.create_default_context()
        self.sock = context.wrap_socket(self.sock, server_hostname=self.host)


def post(
    target: Target,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,
    allowed: Sequence[Network] = (),
    resolve: Resolve = resolve,
) -> Answer:
    """RefusedAddressError for an address that may not be sent to, OSError where nobody answers in time."""
    address = judged(resolve(target.host, target.port), allowed)
    connection = (_Encrypted if target.scheme == "https" else _Plain)(target, address, timeout)
    # A receiver that sends a byte now and then would hold the thread for ever: each byte resets the socket's own clock.
    late = threading.Event()
    deadline = threading.Timer(timeout, hang_up, [connection, late])
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("POST", target.path, body, dict(headers))
        answer = connection.getresponse()
        answer.read(MOST_ANSWER_BYTES)
        if late.is_set():
            raise TimeoutError(f"no whole answer in {timeout:g} s")
        return Answer(answer.status, answer.getheader("retry-after", "") or "")
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"the answer is no HTTP: {type(error).__name__}") from error
    finally:
        deadline.cancel()
        connection.close()


def hang_up(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
