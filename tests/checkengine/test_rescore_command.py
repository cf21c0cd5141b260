from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import WhitespaceSplit
from typer.testing import CliRunner

from checkengine.commands.rescore import app
from checkengine.guards.errors import UserError
from checkengine.tiny import WORDS, tiny_model, tiny_tokenizer

PROMPT = [5, 9, 30, 31]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def greedy(model: Path) -> list[int]:
    import torch

    tokens = list(PROMPT)
    loaded = tiny_model()
    with torch.no_grad():
        for _ in range(12):
            tokens.append(int(loaded(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


def lines(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "outputs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def record(name: str, tokens: list[int]) -> dict[str, Any]:
    return {"id": name, "prompt_token_ids": PROMPT, "token_ids": tokens, "temperature": 0}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_habit_and_a_corruption_are_told_apart(tmp_path: Path, model: Path, greedy: list[int]) -> None:
    broken = [*greedy[:6], (greedy[6] + 1) % WORDS, *greedy[7:]]
    result = run(lines(tmp_path, record("good", greedy), record("bad", broken)), "--model", str(model), "--json")
    assert result.exit_code == 1, result.output
    good, bad = (json.loads(line) for line in result.stdout.splitlines())
    assert (good["outcome"], bad["outcome"]) == ("habit", "corruption")
    assert {each["verdict"] for each in good["tokens"]} == {"habit"}
    assert bad["tokens"][6]["verdict"] == "never"
    assert bad["tokens"][6]["rank"] > 1
    assert run(lines(tmp_path, record("good", greedy)), "--model", str(model)).exit_code == 0


def test_text_is_read_with_the_models_tokenizer(tmp_path: Path, model: Path, greedy: list[int]) -> None:
    words = {
        "prompt": " ".join(f"w{token}" for token in PROMPT),
        "completion": " ".join(f"w{token}" for token in greedy),
    }
    result = run(lines(tmp_path, {"id": 1, "temperature": 0} | words), "--model", str(model))
    assert result.exit_code == 0, result.output
    assert "habit" in result.output


def test_the_summary_holds_no_content(tmp_path: Path, model: Path) -> None:
    result = run(lines(tmp_path, record("salad", list(range(100, 130)))), "--model", str(model))
    assert result.exit_code == 1
    assert "w1" not in result.output


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "nonsense",
        '{"id": 1}',
        '{"id": 1, "token_ids": [1]}',
        '{"id": 1, "token_ids": [1], "prompt_token_ids": "x"}',
    ],
)
def test_a_line_that_is_no_output_is_named_by_its_number(tmp_path: Path, model: Path, line: str) -> None:
    (tmp_path / "bad.jsonl").write_text("\n" + line + "\n")
    error = run(str(tmp_path / "bad.jsonl"), "--model", str(model)).exception
    assert isinstance(error, UserError)
    assert "line 2" in str(error)


def test_a_file_needs_a_model_or_a_server(tmp_path: Path, greedy: list[int]) -> None:
    assert "--model" in str(run(lines(tmp_path, record("a", greedy))).exception)
