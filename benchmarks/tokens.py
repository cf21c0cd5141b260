"""Token detectors on real text: what a token costs, on the demo model's vocabulary."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import typer

from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.benchmarks.token_detectors import token_detector_figures
from checkengine.detectors import Vocabulary
from checkengine.engine_shim.models import model_directory

MODEL = "smollm2-135m"
FILE = "language_confusion.jsonl.gz"
COMPLETIONS = 200


def token_figures(data: Path | None = None) -> list[dict[str, Any]]:
    """Over completions of real models in `data` where they are there, else over the prompts of this project."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_directory(MODEL)))
    text = "\n".join(completions(data) or QUESTIONS)
    return token_detector_figures(Vocabulary.from_tokenizer(tokenizer), tokenizer(text)["input_ids"])


def completions(data: Path | None) -> list[str]:
    """English completions of other models; says what it could not find."""
    if data is None:
        return []
    if not (data / FILE).is_file():
        typer.echo(f"{data / FILE} is not there: the prompts of this project are read instead", err=True)
        return []
    with gzip.open(data / FILE, "rt", encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        english = (row["completion"] for row in rows if row["language"] in ("en", "English", "english"))
        return [text for text, _ in zip(english, range(COMPLETIONS), strict=False)]
