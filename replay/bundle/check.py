"""What must hold before numbers from a file are used as lengths and indices."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import torch

from checkengine.replay.bundle import plain
from checkengine.replay.bundle.layout import MOST_BLOCK_SIZE, MOST_HEADER_BYTES, MOST_JSON_BYTES, BundleError
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import StepRecord
from checkengine.replay.recorded import RecordedWindow, row_slices


def check_header(data: bytes, where: str) -> None:
    """A safetensors file's header, before the library is given it."""
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else -1
    if not 0 <= length <= min(MOST_HEADER_BYTES, MOST_JSON_BYTES, len(data) - 8):
        raise BundleError(f"{where} has no safetensors header: the bundle is damaged; fetch it again")
    header = plain.decode(data[8 : 8 + length], f"{where} (header)")
    if not isinstance(header, dict):
        raise BundleError(f"{where} has no safetensors header: the bundle is damaged; fetch it again")


def check_image(image: MemoryImage) -> None:
    """ValueError where tensors, blocks and layers do not fit together."""
    if type(image.block_size) is not int or not 1 <= image.block_size <= MOST_BLOCK_SIZE:
        raise ValueError(f"a block size of {image.block_size!r}")
    if image.blocks.ndim != 1 or (image.blocks < 0).any() or len(np.unique(image.blocks)) != len(image.blocks):
        raise ValueError("block numbers that repeat or are negative")
    for name, tensor in image.tensors.items():
        layers = image.layers[name.rpartition(".")[0]]
        if tensor.ndim != 5 or tensor.shape[:3] != (len(image.blocks), len(layers), image.block_size):
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}")


def check_undo(held: Mapping[str, torch.Tensor], count: int, image: MemoryImage) -> None:
    """ValueError where an entry's bytes are not those of `count` slots of the image."""
    for name, tensor in held.items():
        _, layers, _, heads, dimension = image.tensors[name].shape
        if tensor.shape != (count, layers, heads, dimension) or tensor.dtype != image.tensors[name].dtype:
            raise ValueError(f"undo bytes of {name} that do not fit its slots")


def check_blocks(window: RecordedWindow) -> None:
    """ValueError where a record's columns contradict each other or a block change leaves a hole in a table."""
    lengths = dict(zip(window.base.handles.tolist(), window.base.counts.tolist(), strict=True))
    for index, record in enumerate(window.records):
        check_rows(record)
        for handle in record.ended if index else ():
            lengths.pop(handle, None)
        for handle, place, block in record.block_changes.tolist() if index else ():
            if not 0 <= place <= lengths.get(handle, 0):
                raise ValueError(f"a block change of step {record.step} beyond the end of its table")
            lengths[handle] = place if block == -1 else max(lengths.get(handle, 0), place + 1)


def check_rows(record: StepRecord) -> None:
    rows, sampling = len(record.handles), int(record.samples.sum())
    lengths = (len(record.query_lengths), len(record.starts), len(record.samples))
    if lengths != (rows, rows, rows) or (record.query_lengths < 0).any() or (record.starts < 0).any():
        raise ValueError(f"rows of step {record.step} that do not fit together")
    if int(record.query_lengths.sum()) != len(record.token_ids) or len(record.sampled) not in (0, sampling):
        raise ValueError(f"tokens of step {record.step} that do not fit its rows")
    if len(record.fingerprints) not in (0, sampling):
        raise ValueError(f"fingerprints of step {record.step} that do not fit its rows")


def check_window(window: RecordedWindow, block_size: int) -> None:
    """ValueError where a row has no sequence, or more tokens than its block table holds."""
    for record, tables in window.walk():
        for handle, start, count, _ in row_slices(record):
            if handle not in window.starts:
                raise ValueError(f"a row of step {record.step} of a sequence that is not told")
            if start + count > len(tables.get(handle, ())) * block_size:
                raise ValueError(f"a row of step {record.step} beyond the end of its block table")
