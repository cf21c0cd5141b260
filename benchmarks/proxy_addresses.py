"""Requests that an OpenAPI document allows and forbids, drawn by schemathesis, on the proxy's own addresses.

On the admin port everything that its document promises is checked; on the clients' port, in front of an upstream that
answers whatever it is asked: never a fault of the server, and always an answer of OpenAI's shape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.proxy_load import process
from checkengine.engine_shim.proxy.admin_document import ADMIN

SEED = 6
PROMISED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
_TEXT = {"type": "string"}
_MESSAGES = {
    "type": "array",
    "items": {"type": "object", "properties": {"role": _TEXT, "content": {}, "tool_calls": {}}},
}
_MORE: dict[str, Any] = {
    "stream": {"type": "boolean"}, "tools": {}, "stop": {}, "n": {"type": "integer"}, "user": {}, "stream_options": {},
}  # fmt: skip


def _post(**fields: Any) -> dict[str, Any]:
    asked = {"type": "object", "properties": {"model": _TEXT, **fields, **_MORE}}
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    return {"post": {"requestBody": body, "responses": {"200": {"description": "An answer, or events."}}}}


CLIENTS: Mapping[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "the proxy in front of a mock", "version": "1"},
    "paths": {
        "/v1/chat/completions": _post(messages=_MESSAGES),
        "/v1/completions": _post(prompt={}),
        "/v1/responses": _post(input={}, instructions={}),
        "/v1/embeddings": _post(input={}),
        "/checkengine/healthz": {"get": {"responses": {"200": {"description": "It serves."}}}},
    },
}


def address_figures(examples: int) -> Iterator[dict[str, Any]]:
    """None where schemathesis is missing, which is said on stderr."""
    try:
        import schemathesis  # noqa: F401
    except ImportError:
        print("proxy: requests by schema need schemathesis (extra dev)", file=sys.stderr)
        return
    with _proxy() as (clients, admin):
        for what, document, url in (("clients'", CLIENTS, clients), ("admin", ADMIN, admin)):
            faults, count = faults_of(document, url, examples)
            for fault in faults:
                print(fault, file=sys.stderr)
            name = f"proxy: of {count:,} requests by schema to {what} addresses, answered against it"
            yield figure(name, len(faults), "requests", 0)


def faults_of(document: Mapping[str, Any], url: str, examples: int) -> tuple[list[str], int]:
    """What did not answer as the document says, and the number of requests; `examples` for each operation, half of them
    such as it forbids."""
    import requests
    import schemathesis
    from schemathesis import GenerationMode, checks
    from schemathesis.core.failures import FailureGroup

    schema = schemathesis.openapi.from_dict(dict(document))
    chosen = checks.CHECKS.get_by_names(list(PROMISED))
    faults: list[str] = []
    count = 0

    def ask(case: Any) -> None:
        nonlocal count
        count += 1
        try:
            case.validate_response(case.call(base_url=url), checks=chosen)
        except (FailureGroup, requests.RequestException) as fault:
            faults.append(f"{case.method} {case.formatted_path}: {' '.join(str(fault).split())[:400]}")

    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]
        for mode in GenerationMode:
            _drawn(operation.as_strategy(generation_mode=mode), ask, max(1, examples // 2))
    return faults, count


def _drawn(strategy: Any, ask: Any, examples: int) -> None:
    import hypothesis
    from hypothesis.errors import Unsatisfiable

    chosen = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        given: Any = hypothesis.given(strategy)
        drawn: Any = chosen(given(ask))
        seeded: Any = hypothesis.seed(SEED)
        seeded(drawn)()
    except Unsatisfiable:
        return  # An operation that takes nothing has nothing that could be wrong.


@contextmanager
def _proxy() -> Iterator[tuple[str, str]]:
    """Addresses of a proxy with all guards, in front of a mock."""
    home = "checkengine.benchmarks"
    with (
        process(f"{home}.proxy_upstream") as mock,
        process(f"{home}.proxy_process", "administered", mock.url) as proxy,
    ):
        yield proxy.url, f"http://127.0.0.1:{proxy.held()['admin_port']}"
