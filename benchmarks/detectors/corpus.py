"""Hard negatives: what lies on this machine as text, cut into replies of 256 tokens.

Sources, documentation, JSON, CSV, SQL, lock files, SVG, notebooks, man pages and their like repeat themselves, and
mix scripts and signs, for good reasons. Nothing is copied: a corpus lives as long as its process. Which files there are
differs between machines, so figures name the number of chunks.
"""

from __future__ import annotations

import gzip
import os
import site
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.tokenizer import encode, token_bytes

CHUNKS, QUICK_CHUNKS = 300_000, 20_000
CHUNK_TOKENS = 256
SHORTEST = 128
"""Tokens that the rest of a file needs to make a chunk of its own."""
FILE_BYTES = 48_000
"""Read of one file, so that no single table of a hundred megabytes is the corpus."""
BATCH_FILES = 512
SYSTEM = ("/usr/share", "/usr/lib/python3", "/usr/include", "/usr/lib/node_modules", "/usr/local", "/opt", "/etc")
BINARY = (
    ".so .a .o .0 .pyc .nbc .nbi .mo .png .jpg .jpeg .gif .ico .ttf .otf .woff .woff2 .pfb .jar .class .whl .zip .tar"
    " .bz2 .xz .exe .dll .npz .npy .mat .sav .wav .pdf .pt .ptl .bin .safetensors .gguf .db .sqlite .pem"
)
KINDS = {
    "python": ".py .pyi .pyx .pxd",
    "c": ".h .hpp .c .cc .cpp .cuh .cu .inc .tcc .td",
    "script": ".js .mjs .cjs .ts .mts .tsx .sh .bash .pl .pm .tcl .lua .rb .vim .ps1 .php .go .rs .java .f90 .r",
    "json": ".json .jsonl .map",
    "notebook": ".ipynb",
    "table": ".csv .tsv .tab .arff .dat .enc .dectest .tri",
    "sql": ".sql",
    "lock": ".lock .sum",
    "svg": ".svg",
    "markup": ".html .htm .xml .xsl .xsd .glade .ui .policy .pom",
    "style": ".css .scss .less",
    "docs": ".md .rst .txt .pod .texi .tex",
    "settings": ".toml .yaml .yml .ini .cfg .conf .service .desktop .cmake .mk .m4 .in .am .build .def",
    "template": ".jinja .j2 .mako .tmpl .tm .tp",
}
NO_TEXT = frozenset(BINARY.split())
KIND_OF = {suffix: kind for kind, suffixes in KINDS.items() for suffix in suffixes.split()}


@dataclass(frozen=True, slots=True)
class Chunk:
    """About 256 tokens that follow each other in one file."""

    kind: str
    """python, c, script, json, notebook, table, sql, lock, svg, markup, style, docs, settings, template, man, other."""
    source_index: int
    """Of the file, in `Corpus.sources`."""
    text: str
    token_ids: NDArray[np.int32]


@dataclass(slots=True)
class Corpus:
    """All chunks in compact arrays; a chunk's text and tokens are made when they are asked for."""

    sources: list[Path] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """Of each source."""
    source_of: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    first_token: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """Shape (chunks + 1,): chunk i holds tokens first_token[i] … first_token[i + 1]."""
    first_byte: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Of all chunks, one after another."""
    text: bytes = b""
    """UTF-8 of all chunks, one after another."""

    def __len__(self) -> int:
        return len(self.source_of)

    def __getitem__(self, index: int) -> Chunk:
        if not 0 <= index < len(self):
            raise IndexError(f"chunk {index} of {len(self)}")
        source = int(self.source_of[index])
        return Chunk(self.kinds[source], source, self.text_of(index), self.token_ids(index))

    def __iter__(self) -> Iterator[Chunk]:
        return (self[index] for index in range(len(self)))

    def token_ids(self, index: int) -> NDArray[np.int32]:
        return self.tokens[self.first_token[index] : self.first_token[index + 1]]

    def text_of(self, index: int) -> str:
        """A character that the cut went through is left out."""
        return self.text[self.first_byte[index] : self.first_byte[index + 1]].decode("utf-8", "ignore")

    def first(self, chunks: int) -> Corpus:
        """The first so many chunks; arrays are shared."""
        if chunks >= len(self):
            return self
        return Corpus(
            self.sources,
            self.kinds,
            self.source_of[:chunks],
            self.first_token[: chunks + 1],
            self.first_byte[: chunks + 1],
            self.tokens,
            self.text,
        )


def hard_negatives(options: DetectorOptions) -> Corpus:
    """300,000 chunks (`quick`: 20,000), or what this machine has; about a minute at the first call of a process."""
    wanted = QUICK_CHUNKS if options.quick else CHUNKS
    if _known and len(_known[-1]) >= wanted:
        return _known[-1].first(wanted)
    _known[:] = [build(wanted)]
    return _known[-1]


_known: list[Corpus] = []


def build(wanted: int, roots: Sequence[Path] | None = None) -> Corpus:
    """Chunks of the files under `roots`, kinds in turn, so that each is there as often as it lasts."""
    corpus, parts = Corpus(), _Parts()
    batch: list[tuple[str, Path, str]] = []
    for entry in _texts(in_turn(files(default_roots() if roots is None else roots))):
        batch.append(entry)
        if len(batch) == BATCH_FILES:
            parts.add(corpus, batch)
            batch = []
            if parts.chunks >= wanted:
                break
    parts.add(corpus, batch)
    return parts.joined(corpus).first(wanted)


def default_roots() -> list[Path]:
    """Packages and standard library of the running Python, and the system's texts."""
    found = [*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("include"), *SYSTEM]
    if sys.prefix != sys.base_prefix:
        found.append(os.path.join(sys.base_prefix, "share"))
    return [Path(each) for each in dict.fromkeys(found) if os.path.isdir(each)]


def files(roots: Iterable[Path]) -> dict[str, list[Path]]:
    """By kind, in an order that depends on names below the root alone."""
    found: dict[str, dict[bytes, Path]] = {}
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in names:
                if kind := kind_of(name, folder):
                    path = Path(folder, name)
                    key = blake2b(str(path.relative_to(root)).encode(errors="surrogateescape"), digest_size=8)
                    found.setdefault(kind, {})[key.digest()] = path
    return {kind: [paths[key] for key in sorted(paths)] for kind, paths in sorted(found.items())}


def kind_of(name: str, folder: str) -> str | None:
    """By suffix; None for what is no text by its name."""
    stem, suffix = os.path.splitext(name.lower())
    if name in ("package-lock.json", "yarn.lock", "poetry.lock", "RECORD"):
        return "lock"
    if f"{os.sep}man{os.sep}" in folder + os.sep:
        return "man"
    if suffix == ".gz":
        suffix = os.path.splitext(stem)[1]
        return None if suffix == ".tar" else KIND_OF.get(suffix, "other")
    return None if suffix in NO_TEXT else KIND_OF.get(suffix, "other")


def in_turn(found: dict[str, list[Path]]) -> Iterator[tuple[str, Path]]:
    """One file of each kind after another, until the last kind is used up."""
    queues = {kind: iter(paths) for kind, paths in found.items()}
    while queues:
        for kind in list(queues):
            path = next(queues[kind], None)
            if path is None:
                del queues[kind]
            else:
                yield kind, path


def read_text(path: Path) -> str | None:
    """The file's beginning; None for what cannot be read or is no UTF-8 text."""
    try:
        if not path.is_file() or path.is_symlink():
            return None
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(FILE_BYTES)
    except (OSError, EOFError, zlib.error):
        return None
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8", "strict" if len(content) < FILE_BYTES else "ignore")
    except UnicodeDecodeError:
        return None


def _texts(paths: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Path, str]]:
    """Copies of one text (a package that is installed twice) count once."""
    seen: set[bytes] = set()
    for kind, path in paths:
        text = read_text(path)
        if text is None or len(text) < SHORTEST:
            continue
        key = blake2b(text.encode(), digest_size=8).digest()
        if key not in seen:
            seen.add(key)
            yield kind, path, text


class _Parts:
    """Pieces of the arrays, file by file."""

    def __init__(self) -> None:
        self.chunks = 0
        self.tokens: list[NDArray[np.int32]] = []
        self.text: list[bytes] = []
        self.source_of: list[int] = []
        self.token_counts: list[int] = []
        self.byte_counts: list[int] = []

    def add(self, corpus: Corpus, batch: Sequence[tuple[str, Path, str]]) -> None:
        lengths = token_bytes()
        for (kind, path, text), ids in zip(batch, encode([text for _, _, text in batch]), strict=True):
            cuts = _cuts(len(ids))
            if not cuts:
                continue
            ends = np.concatenate(([0], np.cumsum(lengths[ids])))
            corpus.sources.append(path)
            corpus.kinds.append(kind)
            self.tokens.append(ids[: cuts[-1][1]])
            self.text.append(text.encode()[: ends[cuts[-1][1]]])
            self.source_of += [len(corpus.sources) - 1] * len(cuts)
            self.token_counts += [end - first for first, end in cuts]
            self.byte_counts += [int(ends[end] - ends[first]) for first, end in cuts]
            self.chunks += len(cuts)

    def joined(self, corpus: Corpus) -> Corpus:
        corpus.source_of = np.asarray(self.source_of, np.int32)
        corpus.first_token = np.concatenate(([0], np.cumsum(self.token_counts, dtype=np.int64)))
        corpus.first_byte = np.concatenate(([0], np.cumsum(self.byte_counts, dtype=np.int64)))
        corpus.tokens = np.concatenate(self.tokens) if self.tokens else corpus.tokens
        corpus.text = b"".join(self.text)
        return corpus


def _cuts(tokens: int) -> list[tuple[int, int]]:
    cuts = [(first, min(first + CHUNK_TOKENS, tokens)) for first in range(0, tokens, CHUNK_TOKENS)]
    return cuts if cuts and cuts[-1][1] - cuts[-1][0] >= SHORTEST else cuts[:-1]
