"""The model that `checkengine models get smollm2-135m` made; `make test` fetches it first."""

from __future__ import annotations

import json
import re

import pytest
from transformers import AutoTokenizer

from checkengine.engine_shim.models import MARKER, SOURCES, model_directory
from checkengine.engine_shim.models_fetch import sha256_of

NAME = "smollm2-135m"


@pytest.fixture(scope="module")
def directory():
    return model_directory(NAME)


def test_the_weights_are_the_ones_that_were_converted(directory) -> None:
    marker = json.loads((directory / MARKER).read_text())
    assert marker["source_sha256"] == SOURCES[NAME].wheel_sha256
    assert {name: sha256_of(directory / name) for name in marker["weights_sha256"]} == marker["weights_sha256"]


def test_its_files_name_no_directory_of_this_machine(directory) -> None:
    for path in directory.glob("*.json"):
        if path.name != "tokenizer.json":
            strings = re.findall(r'"(/[^"]*|[A-Z]:\\\\[^"]*)"', path.read_text())
            assert strings == [], path.name


def test_it_ends_at_the_end_of_a_turn_and_is_plain_float32(directory) -> None:
    config = json.loads((directory / "config.json").read_text())
    generation = json.loads((directory / "generation_config.json").read_text())
    assert (config["eos_token_id"], generation["eos_token_id"]) == (2, 2)
    assert config["dtype"] == "float32"
    assert "quantization_config" not in config


def test_its_chat_template_and_tokenizer_work(directory) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == 2
    assert tokenizer.model_max_length == SOURCES[NAME].context_length
