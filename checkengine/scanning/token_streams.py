"""Recorded token ids through the guards that engines use, step by step as they were produced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.errors import UserError, one_line
from checkengine.guards.failure import place
from checkengine.guards.finding import Finding
from checkengine.guards.guard import Guard
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.step import SequenceStart, StepView
from checkengine.guards.text import TextFinding
from checkengine.scanning.records import TokenStream
from checkengine.scanning.registry import ENTRIES, GuardUnavailable, scan_name

END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<end_of_turn>")


class TokenGuards:
    """The step guards of the chosen names over one vocabulary."""

    def __init__(
        self, names: Sequence[str], settings: GuardsSettings, vocabulary: Vocabulary, stops: Sequence[int]
    ) -> None:
        self._names = tuple(name for name in names if ENTRIES[name].steps)
        self._guards: list[Guard] = []
        self._unavailable = ""
        try:
            from checkengine.guards.build import build_guards

            wanted = {step for name in names for step in ENTRIES[name].steps}
            self._guards = [guard for guard in build_guards(settings, vocabulary) if guard.name in wanted]
        except Exception as error:
            self._unavailable = f"cannot be loaded: {type(error).__name__} {place(error)}"
        self._stops = tuple(stops)
        self._streams = 0

    def readings(self, record: TokenStream) -> Iterator[tuple[str, Callable[[], Iterable[TextFinding]]]]:
        if self._unavailable:
            for name in self._names:
                yield name, self._raise
            return
        self._streams += 1
        start = SequenceStart(
            self._streams, str(record.id), record.prompt, stop_tokens=self._stops, language=record.language
        )
        for guard in self._guards:
            yield scan_name(guard.name), partial(_read, guard, start, record)

    def _raise(self) -> list[TextFinding]:
        raise GuardUnavailable(self._unavailable)


def _read(guard: Guard, start: SequenceStart, record: TokenStream) -> list[TextFinding]:
    found: list[TextFinding] = []
    try:
        guard.begin(start)
        for step in steps(start, record.tokens):
            found += [as_text_finding(finding) for finding in guard.observe(step)]
    finally:
        guard.forget(start.name)
    return found


def steps(start: SequenceStart, tokens: Sequence[int]) -> Iterator[StepView]:
    """One token a step: how an engine without speculation produced them."""
    prompt = np.array([len(start.prompt_tokens)], np.int32)
    names = (start.name,)
    for index, token in enumerate(tokens):
        yield StepView(index, float(index), names, ((token,),), None, prompt, np.array([index], np.int32))


def as_text_finding(finding: Finding) -> TextFinding:
    at = {"token": finding.token}
    return TextFinding(
        finding.kind, finding.sequence, finding.severity, finding.guard, at, finding.version, finding.evidence
    )


def load_vocabulary(path: Path) -> tuple[Vocabulary, tuple[int, ...]]:
    """The vocabulary of a tokenizer.json, or of a model's folder, and its end tokens. Raises UserError."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        from tokenizers import Tokenizer

        if file.is_file():
            vocabulary = Vocabulary.from_tokenizer(Tokenizer.from_file(str(file)))
        else:
            vocabulary = Vocabulary.from_tokenizer(_by_transformers(path))
    except Exception as error:
        problem = f"{path} holds no tokenizer that can be read ({type(error).__name__}: {one_line(str(error))[:200]})"
        raise UserError(f"{problem}; give --tokenizer a tokenizer.json or a model's folder") from error
    return vocabulary, end_tokens(path if path.is_dir() else path.parent, vocabulary)


def _by_transformers(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def end_tokens(folder: Path, vocabulary: Vocabulary) -> tuple[int, ...]:
    """As the model's own files name them; else the added tokens that are known to end a turn."""
    told = _json(folder / "generation_config.json").get("eos_token_id")
    ids = told if isinstance(told, list) else [told]
    stops = [token for token in ids if type(token) is int]
    name = _json(folder / "tokenizer_config.json").get("eos_token")
    text = name.get("content") if isinstance(name, dict) else name
    stops += [vocabulary.added[text]] if isinstance(text, str) and text in vocabulary.added else []
    known = [vocabulary.added[each] for each in END_TOKENS if each in vocabulary.added]
    return tuple(dict.fromkeys(stops or known))


def _json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
