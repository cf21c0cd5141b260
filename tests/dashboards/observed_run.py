"""A real run for Prometheus to look at: an engine with a fault, its spool and collector, a proxy's fleet, webhooks."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from checkengine import __version__
from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.dashboards.collector import Collector
from checkengine.dashboards.metrics import LiveNumbers, Metrics
from checkengine.dashboards.webhooks import Receiver, Webhooks
from checkengine.engine_shim.faults.nan_attention import NanAttention
from checkengine.engine_shim.proxy.routing.fleet import Fleet
from checkengine.engine_shim.proxy.routing.settings import CanarySettings, DrainSettings
from checkengine.guards.drift import DriftGuard
from checkengine.guards.events import AuditCoverage, AuditJudged
from checkengine.guards.settings import DriftSettings
from checkengine.physical_limit import physical_limit
from checkengine.replay.catalog import Catalog
from checkengine.serving import Told, build_server

SECRET = "whsec_" + "YWJj" * 8
BODY = {"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def tiny_model() -> tuple[Any, Any]:
    """A random Llama over single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    torch.manual_seed(1)
    sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 255}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval(), PreTrainedTokenizerFast(tokenizer_object=inner)


class ObservedEngine:
    """Serves on a client of its own; the fault strikes sequences of 25 tokens or more."""

    def __init__(self, folder: Path, webhook: str, allowed: Any) -> None:
        model, tokenizer = tiny_model()
        settings = Settings(
            engine={"blocks": 64, "block_size": 8, "threads": 1},
            spool={"directory": folder / "spool"},
            catalog={"url": str(folder / "catalog.db")},
            capture={"directory": folder / "bundles"},
            audit={"every_steps": 2},
        )
        engine, shim = embed(model, tokenizer, settings, [NanAttention(modulus=32, remainder=25, layer=1)])
        assert shim is not None
        self.shim = shim
        limit = physical_limit(model)
        self.collector = Collector(settings.spool.directory, lambda: Catalog.open(settings.catalog.url))
        self.webhooks = Webhooks([Receiver.parse("test", webhook, [SECRET])], allowed=allowed)
        counts = self.webhooks.counts
        told = Told(self.collector.totals, [lambda: {("webhook", outcome): n for outcome, n in counts.items()}])
        self._served = build_server(
            engine, shim, tokenizer, settings.server, name="tiny", provider=TracerProvider(), limit=limit, told=told
        )
        self.metrics = self._served.metrics
        shim.assembly.bus.subscribe(self.webhooks.handle, name="webhooks")
        self._judged = threading.Event()
        shim.assembly.bus.subscribe(lambda event: self._judged.set(), name="judged", kinds=(AuditJudged,))
        local = {"base_url": "http://127.0.0.1:8000", "client": ("127.0.0.1", 50000)}
        self._client = TestClient(self._served.app, **local)
        self._client.__enter__()

    def ask(self, letters: int) -> dict[str, Any]:
        """A prompt of so many tokens."""
        answer = self._client.post("/v1/completions", json={**BODY, "prompt": "x" * letters}).json()
        assert "choices" in answer, answer
        return answer

    def tell_audits(self) -> None:
        """As they do by themselves once a minute."""
        audits = self.shim.assembly.audits
        assert audits is not None
        assert self._judged.wait(120), "no step was audited"
        self.shim.assembly.bus.publish(AuditCoverage(**audits.counters(), time=time.time()))

    def exposition(self) -> bytes:
        self.collector.try_once()
        return self.metrics.exposition()[0]

    def close(self) -> None:
        self._client.__exit__(None, None, None)
        self._served.close()
        self.collector.close()


class ObservedProxy:
    """What a proxy in front of a fleet tells."""

    def __init__(self) -> None:
        self.metrics = Metrics(CollectorRegistry(), __version__)
        self.fleet = Fleet({"a": "p", "b": "p"}, DrainSettings(), CanarySettings(), clock=lambda: 1.0)
        self.drift = DriftGuard(DriftSettings(baseline=200))
        chance = random.Random(0)
        for number in range(600):
            self.drift.update("length", float(number), chance.gauss(100.0, 10.0))
        self.fleet.canary("a", None)
        assert all(math.isfinite(evidence) for evidence, _ in self.drift.evidence().values())
        self.metrics.add_live(
            LiveNumbers(drift=self.drift.evidence, canaries=lambda: self.fleet.canaries, upstreams=self.fleet.standings)
        )

    def exposition(self) -> bytes:
        return self.metrics.exposition()[0]


Exposition = Callable[[], bytes]
