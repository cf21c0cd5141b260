"""Outputs from a bundle or a file, and the healthy executor that scores them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from checkengine.guards.errors import UserError, one_line
from checkengine.replay.rescore import Rescored, Sampling, ScoreError, Scorer, rescored
from checkengine.replay.rescore.of_capture import Written, written_in
from checkengine.replay.rescore.over_http import Dialect, HttpScorer

Encode = Callable[[str], list[int]]
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sibling:
    """A healthy server."""

    url: str
    model: str | None
    dialect: str
    token: str | None

    def scorer(self) -> HttpScorer:
        model = self.model or self._first_model()
        return HttpScorer(self.url, model, dialect=cast(Dialect, self.dialect), token=self.token)

    def _first_model(self) -> str:
        address = self.url.rstrip("/").removesuffix("/v1") + "/v1/models"
        request = urllib.request.Request(address)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return str(json.load(answer)["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ScoreError(f"{address} names no model ({one_line(str(error))}); give --served-model") from None


def rescore_all(path: Path, model: str | None, sibling: Sibling | None) -> Iterator[Rescored]:
    """One after another. Raises UserError for an input or an executor that cannot be used."""
    if path.is_dir():
        outputs, recorded = of_bundle(path)
        model = model or recorded
    elif model is None and sibling is None:
        raise UserError("give --model, or --url of a healthy server: a file of outputs names no model")
    else:
        outputs = []
    if sibling is not None:
        scorer: Scorer = sibling.scorer()
        encode = None if path.is_dir() else encoder(model)
    else:
        assert model is not None
        scorer, encode = in_process(model)
    for each in outputs or of_lines(path, encode):
        scores = scorer.score(each.prompt, each.output, each.sampling)
        yield rescored(each.name, scores, each.sampling, scorer.vocabulary)


def of_bundle(path: Path) -> tuple[list[Written], str]:
    """Outputs, and the model that wrote them. A bundle without content holds no tokens to score."""
    from checkengine.replay.bundle import BundleReader

    reader = BundleReader(path, purpose="rescore")
    if reader.level != "full":
        raise ScoreError(f'{path} holds no content: token ids are needed to score ([capture] content = "full")')
    capture = reader.capture()
    return written_in(capture), str(capture.environment.get("model", ""))


def in_process(model: str) -> tuple[Scorer, Encode]:
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from checkengine.engine_shim.models import model_directory
    from checkengine.replay.rescore.in_process import ModelScorer

    directory = model_directory(model)
    disable_progress_bar()
    try:
        loaded = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).eval()
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot load the model in {directory}: {one_line(str(error))}") from error
    encode = encoder(model)
    assert encode is not None
    return ModelScorer(loaded), encode


def encoder(model: str | None) -> Encode | None:
    """Made when a line first holds text."""
    if model is None:
        return None

    def encode(text: str) -> list[int]:
        if not made:
            from transformers import AutoTokenizer

            from checkengine.engine_shim.models import model_directory

            made.append(AutoTokenizer.from_pretrained(model_directory(model), local_files_only=True))
        tokens: list[int] = made[0].encode(text, add_special_tokens=False)
        return tokens

    made: list[Any] = []
    return encode


def of_lines(path: Path, encode: Encode | None) -> Iterator[Written]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield of_line(json.loads(line), encode)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise UserError(f"{path}, line {number}: not an output to score: {one_line(str(error))}") from None


def of_line(found: Any, encode: Encode | None) -> Written:
    if not isinstance(found, dict):
        raise TypeError("not an object")
    name, sampling = str(found["id"]), Sampling.of(found)
    if "token_ids" in found:
        prompt, output = ([int(token) for token in found[key]] for key in ("prompt_token_ids", "token_ids"))
        return Written(name, prompt, output, sampling)
    if encode is None:
        raise ValueError("text needs --model's tokenizer; with --url give token_ids and prompt_token_ids")
    prompt = encode(str(found["prompt"]))
    return Written(name, prompt, encode(str(found["completion"])), sampling)
