"""Bundle format 1.2: a directory of JSON and safetensors files.

    BUNDLE                       marker, written last; without it the bundle is torn
    manifest.json                what the bundle is; size and SHA-256 of every core file and of content/manifest.json
    env.json                     all that is constant and decides numbers, as the engine tells it
    step.json                    window, sequences (names keyed), kernels
    ring.safetensors             records as columns: shapes, lengths, block tables, keyed fingerprints
    sampling.json                numeric sampling parameters
    kv/pages.json                which blocks the image holds, their layout and owners
    expect.json                  what a replay compares
    weights.json                 digests of the weights, as far as the engine tells them
    replay.toml                  how to replay
    keys.json                    the content's key, wrapped to each recipient; can be destroyed, so not in the manifest
    lineage.json                 parent bundle, substitutions
    attest.json                  statement over the root digest (optional)
    content/manifest.json        size and SHA-256 of the content files
    content/sequences.json       names, sampling parameters in full, stop tokens
    content/tokens.safetensors   token ids, prompts, histories, fingerprints
    content/kv.safetensors       KV bytes of the image
    content/undo.safetensors     KV bytes that were overwritten inside the window
    call.json                    of a minimal reproducer, in place of ring, sampling and kv/: one op's call, its shapes,
                                 and the seed that makes its tensors where they are made up
    content/call.safetensors     its tensors where they are the recorded ones
    results/                     append-only: verdicts on exactly this bundle
    EXPORTED                     of a copy that was exported without the content (not in the manifest)
    HOLD                         while it is there, the content does not expire (not in the manifest)

Core files hold no content: no token ids, no text, no KV bytes, and only keyed hashes of any. Files under content/ but
its manifest are encrypted (see `encryption`); sizes and digests are of what is on the disk, so that a bundle is
verified without a key. Removing content/ or keys.json leaves a bundle that can still be opened, shown and verified.
Format 1.0 wrote content in the clear (keys.json, in the manifest, says "plain") and is read as ever; 1.2 added call
bundles. A minor version adds, a major one changes; what a reader does not know it leaves alone.
"""

from __future__ import annotations

from checkengine.guards.errors import UserError

MAGIC = "checkengine-bundle"
VERSION = (1, 2)

MARKER = "BUNDLE"
MANIFEST = "manifest.json"
ENVIRONMENT = "env.json"
STEP = "step.json"
RING = "ring.safetensors"
SAMPLING = "sampling.json"
PAGES = "kv/pages.json"
EXPECT = "expect.json"
WEIGHTS = "weights.json"
REPLAY = "replay.toml"
KEYS = "keys.json"
LINEAGE = "lineage.json"
ATTEST = "attest.json"
CONTENT = "content"
CONTENT_MANIFEST = "content/manifest.json"
SEQUENCES = "content/sequences.json"
TOKENS = "content/tokens.safetensors"
KV = "content/kv.safetensors"
UNDO = "content/undo.safetensors"
CALL = "call.json"
CALL_TENSORS = "content/call.safetensors"
RESULTS = "results"
HOLD = "HOLD"
EXPORTED = "EXPORTED"
WITHOUT_CONTENT = "exported without content"
"""Level of such a copy."""

CORE_FILES = (ENVIRONMENT, STEP, RING, SAMPLING, PAGES, EXPECT, WEIGHTS, REPLAY, LINEAGE)
CONTENT_FILES = (SEQUENCES, TOKENS, KV, UNDO)

MOST_MARKER_BYTES = 4 << 10
MOST_JSON_BYTES = 8 << 20
MOST_JSON_DEPTH = 32
MOST_HEADER_BYTES = 4 << 20
"""Of a safetensors file."""
MOST_FILE_BYTES = 256 << 30
MOST_FILES = 10_000
MOST_BLOCK_SIZE = 1 << 16
MOST_CALL_ELEMENTS = 1 << 28
"""Of a tensor that a reader makes from a seed."""

LEFTOVER_PREFIX = ".writing-"
"""Of a bundle that is being written, or whose writer died."""


class BundleError(UserError):
    """A bundle cannot be written or read; the message says what, where and what to do."""

    exit_code = 129
