"""A small model behind the real server with a planted fault: its spool, catalog and bundles are what the pages show."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.dashboards.web.app import Given, build_app
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.engine_shim.engine.executor import cached_model
from checkengine.engine_shim.faults import Fault, NanAttention
from checkengine.serving import build_server
from checkengine.storage import make_collector
from checkengine.web_process import AnnouncingServer, configuration

FAULT = NanAttention(modulus=32, remainder=25, layer=1)
"""Strikes sequences of 25 tokens or more."""
BODY = {"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
LOCAL: Any = {"base_url": "http://127.0.0.1:8000", "client": ("127.0.0.1", 50000)}
SIZES: Any = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS: Any = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 255}


def save_model(folder: Path) -> None:
    """A random Llama over single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)


def settings_in(folder: Path, **sections: Any) -> Settings:
    told: dict[str, Any] = {
        "engine": {"blocks": 64, "block_size": 8, "threads": 1},
        "logits": {"level": "full"},
        "audit": {"enabled": False},
        "capture": {"content": "full", "directory": folder / "bundles"},
        "spool": {"directory": folder / "spool", "sync": "never"},
        "catalog": {"url": str(folder / "catalog.db")},
    }
    return Settings(**(told | sections))


@dataclass
class Service:
    """`folder` holds the model as `model`: a replay that runs there finds it."""

    folder: Path
    replica: str = "gpu-7:4711"
    faults: Sequence[Fault] = (FAULT,)

    def __post_init__(self) -> None:
        model_folder = self.folder / "model"
        if not model_folder.exists():
            save_model(model_folder)
        self.settings = settings_in(self.folder)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CHECKENGINE_REPLICA", self.replica)
            model = cached_model(str(model_folder), "float32")
            engine, shim = embed(model, tokenizer, self.settings, list(self.faults))
        assert shim is not None
        self.shim = shim
        server = self.settings.server
        self.served = build_server(engine, shim, tokenizer, server, name="tiny", provider=TracerProvider())
        self._events: list[Any] = []
        self._changed = threading.Condition()
        shim.assembly.bus.subscribe_sync(self._hear, name="test")
        self.collector = make_collector(self.settings)
        self.client = TestClient(self.served.app, **LOCAL)
        self.client.__enter__()

    @property
    def database(self) -> str:
        return self.settings.catalog.url

    @property
    def bundles(self) -> Path:
        return self.settings.capture.directory

    def ask(self, letters: int, **more: Any) -> dict[str, Any]:
        """A prompt of so many tokens."""
        answer = self.client.post("/v1/completions", json={**BODY, "prompt": "x" * letters, **more}).json()
        assert "choices" in answer, answer
        return answer

    def heard(self, kind: type[Any], number: int = 1) -> None:
        """Wait until so many events of the kind were published in all."""
        with self._changed:
            enough = self._changed.wait_for(lambda: sum(isinstance(each, kind) for each in self._events) >= number, 60)
        assert enough, f"{number} {kind.__name__} did not come"

    def close(self) -> None:
        """What was told is in the catalog afterwards."""
        self.client.__exit__(None, None, None)
        self.served.close()
        assert self.collector.try_once() is not None
        self.collector.close()

    def _hear(self, event: Any) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()


@contextlib.contextmanager
def listening(settings: DashboardSettings, given: Given) -> Iterator[str]:
    """The dashboard on a free port of this machine; its address."""
    app, announced = build_app(settings, given), queue.Queue[str]()
    server = AnnouncingServer(app, configuration(app, "127.0.0.1", 0), announced.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield announced.get(timeout=60)
    finally:
        server.should_exit = True
        thread.join(10)
