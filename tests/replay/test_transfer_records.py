"""Both sides' records of a broken KV block: kept in one file without content, and judged when it is read again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from checkengine.commands.replay import app
from checkengine.detectors.seal import Break, Broken, Flip
from checkengine.replay.bundle import DeploymentKey
from checkengine.replay.transfer import DecodeRecord, Label, PrefillRecord, Side, Transfer, evidence_of, judge_transfer
from checkengine.replay.transfer_file import KEPT, TransferError, read_transfer, to_bytes, write_transfer

KEY = DeploymentKey(bytes(32))
LABEL = Label("secret tokens", 8, "float32", 3, "secret tenant")
WHOLE = {"kv": np.arange(2 * 8 * 3, dtype=np.uint64).reshape(2, 8, 3)}
OTHER = {"kv": WHOLE["kv"] + np.uint64(1)}
BROKEN = Broken(Break.BIT_FLIP, 1, 1, 5, 2, Flip(9, 4))


def transfer(*, sealed=WHOLE, sent=WHOLE, seal=WHOLE, delivered=WHOLE, read=OTHER, said=LABEL, came=LABEL):
    prefill = PrefillRecord("prefill:1", said, sealed, sent)
    decode = DecodeRecord("decode:2", LABEL, came, "prefill:1", seal, delivered, read, WHOLE)
    return Transfer("block", BROKEN, prefill, decode, 12.5)


OF_SIDE = {
    "bytes changed before they left": (transfer(sent=OTHER, delivered=OTHER), Side.PREFILL),
    "sealed as another tenant's": (transfer(said=dataclasses.replace(LABEL, owner="x"), read=WHOLE), Side.PREFILL),
    "an older seal came": (transfer(came=dataclasses.replace(LABEL, generation=2), read=WHOLE), Side.TRANSPORT),
    "another seal came": (transfer(seal=OTHER), Side.TRANSPORT),
    "bytes changed on the way": (transfer(delivered=OTHER), Side.TRANSPORT),
    "it came too late": (transfer(delivered=OTHER, read=WHOLE), Side.TRANSPORT),
    "it changed where it lay": (transfer(), Side.DECODE),
    "nothing differs": (transfer(read=WHOLE), Side.NONE),
    "what was sent is unknown": (transfer(sent=None, delivered=OTHER), Side.UNTOLD),
    "what was sent is unknown, and it changed where it lay": (transfer(sent=None), Side.DECODE),
    "what was delivered is unknown": (transfer(delivered=None), Side.UNTOLD),
    "the writer kept nothing": (dataclasses.replace(transfer(delivered=OTHER), prefill=None), Side.UNTOLD),
}


@pytest.mark.parametrize("case", OF_SIDE)
def test_the_first_two_records_that_differ_tell_the_side(case):
    way, side = OF_SIDE[case]
    assert judge_transfer(way).side is side


@pytest.mark.parametrize("case", OF_SIDE)
def test_a_file_of_both_sides_records_says_the_same_as_the_records(case, tmp_path):
    way, side = OF_SIDE[case]
    again = read_transfer(write_transfer(way, tmp_path, KEY, "one"))
    assert judge_transfer(again).side is side
    assert (again.broken, again.time, again.decode.reader) == (BROKEN, 12.5, "decode:2")


def test_a_file_holds_keyed_hashes_and_no_label_in_the_clear(tmp_path):
    content = write_transfer(transfer(), tmp_path, KEY, "one").read_bytes()
    assert b"secret" not in content
    assert WHOLE["kv"][0].tobytes() not in content


def test_a_folder_keeps_the_newest_files_and_no_draft(tmp_path):
    for number in range(KEPT + 3):
        write_transfer(transfer(), tmp_path, KEY, f"{number:04d}")
    assert len(list(tmp_path.iterdir())) == KEPT


def test_a_disk_that_refuses_the_file_leaves_no_draft(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_transfer(transfer(), tmp_path, KEY, "one")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_with_one_clear_error(data: st.DataObject):
    whole = bytearray(to_bytes(transfer(), KEY))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([len(whole), place]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.transfer"
        path.write_bytes(bytes(whole[:cut]))
        with contextlib.suppress(TransferError):
            judge_transfer(read_transfer(path))


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"\xff" * 64, b"[" * 50_000, "ß字".encode() * 99])
def test_a_file_that_is_no_transfer_is_refused_with_one_clear_error(content, tmp_path):
    path = tmp_path / "ä 字.transfer"
    path.write_bytes(content)
    with pytest.raises(TransferError, match="is no transfer, or was torn"):
        read_transfer(path)


def test_evidence_names_class_place_bit_and_side():
    assert evidence_of(BROKEN, 7, Side.TRANSPORT) == {
        "cells": 1, "layer": 1, "position": 5, "head": 2, "block": 7, "byte": 9, "bit": 4,
        "bit_flip": True, "side_transport": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "code"), [("bytes changed on the way", 1), ("what was delivered is unknown", 125), ("nothing differs", 0)]
)
def test_replay_of_a_transfer_names_the_side_and_ends_as_bisect_expects(case, code, tmp_path):
    path = write_transfer(OF_SIDE[case][0], tmp_path, KEY, "one")
    done = CliRunner().invoke(app, [str(path), "--json"])
    assert done.exit_code == code
    assert json.loads(done.stdout)["side"] == str(OF_SIDE[case][1])


def test_replay_of_a_transfer_tells_a_person_who_broke_it_and_where(tmp_path):
    path = write_transfer(transfer(delivered=OTHER), tmp_path, KEY, "one")
    told = CliRunner().invoke(app, [str(path)]).stdout
    assert "the transport broke it" in told
    assert "bit flip, from prefill:1 to decode:2: 1 cells, the first in layer 1, token 5, head 2, byte 9, bit 4" in (
        " ".join(told.split())
    )
