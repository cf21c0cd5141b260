"""The client towards upstreams: aiohttp without anything that would change, follow or remember what passes."""

from __future__ import annotations

import asyncio

import aiohttp
from yarl import URL

from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import Upstream

READ_BUFFER = 1 << 16
"""Bytes of an answer that wait in the proxy: beyond twice as many the upstream is not read any more."""
MADE_BY_ITSELF = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp would add."""


def open_session(settings: ProxySettings) -> aiohttp.ClientSession:
    """To be called on the event loop. Whoever calls closes it."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0, ttl_dns_cache=10, force_close=False)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=MADE_BY_ITSELF,
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BUFFER,
        max_line_size=settings.max_header_bytes,
        max_field_size=settings.max_header_bytes,
        # Silence is watched for all requests together: a timer for each chunk would cost more than the chunk.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds),
    )


def address_of(upstream: Upstream, raw_path: bytes, query: bytes) -> URL:
    """Path and query as they came; host and port are the upstream's, whatever the path holds."""
    target = raw_path.decode("ascii") + (f"?{query.decode('ascii', 'replace')}" if query else "")
    return URL(upstream.url + target, encoded=True)


NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""No connection: the request did not reach the server."""
CLOSED_BEFORE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError)
"""Closed before a byte of an answer: often a kept connection that the server had closed already."""
CUT_OFF = (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError, asyncio.IncompleteReadError)
GARBAGE = (aiohttp.ClientResponseError, aiohttp.http.HttpProcessingError)
