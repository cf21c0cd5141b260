"""`checkengine scan`: whatever a file holds, each line is read or told, and nothing raises."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from checkengine.guards.errors import UserError
from checkengine.guards.prompts import text_of
from checkengine.scanning import lines as module
from checkengine.scanning.lines import COMPRESSED_BYTES, Line, check_inputs, read_lines, split_lines, unfolded
from checkengine.scanning.records import BadLine, Chat, Completion, Measurement, TokenStream, parse

TWO = b'{"id": 1}\n{"id": 2}\n'
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "zstd without its size": lambda data: b"".join(_streamed(data)),
    "two gzip members": lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    "two zstd frames": lambda data: PACKED["zstd"](data[:7]) + PACKED["zstd"](data[7:]),
    "gzip padded with zeros": lambda data: gzip.compress(data) + bytes(512),
}


def _streamed(data: bytes) -> Iterator[bytes]:
    packing = zstandard.ZstdCompressor().compressobj()
    yield packing.compress(data)
    yield packing.flush()


def written(folder: Path, data: bytes, name: str = "log") -> list[Line]:
    path = folder / name
    path.write_bytes(data)
    return list(read_lines(str(path)))


@pytest.mark.parametrize("packing", PACKED)
def test_a_file_is_read_however_it_is_packed_and_named(packing: str, tmp_path: Path) -> None:
    found = written(tmp_path, PACKED[packing](TWO))
    assert [(line.number, line.data, line.fault) for line in found] == [(1, b'{"id": 1}', ""), (2, b'{"id": 2}', "")]


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_packed_file_that_is_cut_anywhere_gives_its_whole_lines_and_says_that_the_rest_is_lost(
    packing: str, tmp_path: Path
) -> None:
    packed = PACKED[packing](TWO)
    for cut in range(5, len(packed)):
        *whole, last = written(tmp_path, packed[:cut])
        assert "ends too early" in last.fault
        assert [line.data for line in whole] == [b'{"id": 1}', b'{"id": 2}'][: len(whole)]


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_packed_file_with_a_damaged_byte_is_told_and_never_raises(packing: str, tmp_path: Path) -> None:
    packed = PACKED[packing](json.dumps({"id": 1, "completion": "abc" * 50}).encode() * 30)
    faults = set()
    for place in range(4, len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 0xFF
        faults |= {line.fault.partition(" (")[0] for line in written(tmp_path, bytes(damaged)) if line.fault}
    assert f"damaged {packing}" in faults


def test_many_large_lines_come_through_every_packing_unchanged(tmp_path: Path) -> None:
    rows = [json.dumps({"id": n, "completion": f"{n} äöü 漢字 " * (n * 40)}).encode() for n in range(60)]
    for packing in PACKED:
        assert [line.data for line in written(tmp_path, PACKED[packing](b"\n".join(rows)))] == rows


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_line(tmp_path: Path) -> None:
    found = written(tmp_path, b'\xef\xbb\xbf{"id": 1}\r\n\r\n{"id": 2}\r\n')
    assert [(line.number, line.data) for line in found] == [(1, b'{"id": 1}'), (3, b'{"id": 2}')]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert written(tmp_path, b"") == []


def test_a_line_too_long_to_hold_is_told_and_the_next_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.split_lines, "__defaults__", (1000,))
    found = written(tmp_path, b"x" * 200_000 + b"\n" + TWO)
    assert [line.number for line in found] == [1, 2, 3]
    assert "longer than" in found[0].fault
    assert [line.data for line in found[1:]] == [b'{"id": 1}', b'{"id": 2}']


def test_no_more_of_a_line_is_held_than_the_limit() -> None:
    held = []

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            held.append(1)
            yield b"x" * 100

    assert list(split_lines(endless(), most=500)) == [None]
    assert len(held) == 100


def test_little_packed_data_is_unfolded_at_a_time() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    largest = max(len(piece) for piece in unfolded(io.BytesIO(bomb)))
    assert largest <= COMPRESSED_BYTES * 40_000


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_where_a_stream_is_split_changes_no_line(data: bytes, cuts: list[int]) -> None:
    pieces = [data[a:b] for a, b in pairwise([0, *sorted(cuts), len(data)])]
    whole = data.split(b"\n")
    assert list(split_lines(pieces)) == (whole if whole[-1] else whole[:-1])


def test_a_folder_a_missing_file_and_a_second_standard_input_are_refused_at_once(tmp_path: Path) -> None:
    for names, said in (
        ([str(tmp_path)], "is a folder"),
        ([str(tmp_path / "none")], "No such file"),
        (["-", "-"], "can be read once"),
        (["a\0b"], "cannot be read"),
    ):
        with pytest.raises(UserError, match=said):
            check_inputs(names)


BAD = {
    "no JSON": (b"{", "not JSON"),
    "a list": (b"[]", "not an object but a list"),
    "a number": (b"1", "not an object but a number"),
    "nothing known": (b'{"id": 1}', "none of completion"),
    "no id": (b'{"completion": "x"}', "no id"),
    "an odd id": (b'{"id": [], "completion": "x"}', "id is a list"),
    "true as id": (b'{"id": true, "completion": "x"}', "id is true or false"),
    "no text": (b'{"id": 1, "completion": null}', "completion is nothing"),
    "a prompt that is a list": (b'{"id": 1, "completion": "", "prompt": []}', "prompt is a list"),
    "messages that are no list": (b'{"id": 1, "messages": {}}', "messages is no list"),
    "a message that is no object": (b'{"id": 1, "messages": [1]}', "messages is no list of objects"),
    "a message without a role": (b'{"id": 1, "messages": [{"role": "user"}, {}]}', "message 1 has no role"),
    "a token that is a text": (b'{"id": 1, "token_ids": [1, "2"]}', "token_ids is no list"),
    "a token that is no whole number": (b'{"id": 1, "token_ids": [1.5]}', "token_ids is no list"),
    "a token that is true": (b'{"id": 1, "token_ids": [true]}', "token_ids is no list"),
    "a token beyond any vocabulary": (b'{"id": 1, "token_ids": [99999999999999999999]}', "no token id can be"),
    "a value that is NaN": (b'{"series": "a", "value": NaN}', "value is no finite number"),
    "a value that is missing": (b'{"series": "a"}', "value is no finite number"),
    "a value too large": (b'{"series": "a", "value": 1' + b"0" * 400 + b"}", "value is no finite number"),
    "a number of too many digits": (b'{"id": 1' + b"0" * 9000 + b"}", "too many digits"),
    "nesting without end": (b"[" * 200_000, "nested too deep"),
    "bytes that are no UTF-8": (b'{"id": 1, "completion": "\xff"}', "not UTF-8 at byte 25"),
    "another encoding": ('{"id": 1}'.encode("utf-16"), "not UTF-8"),
    "a NUL": (b"\0", "not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_is_no_record_says_why_and_nothing_of_its_content(name: str) -> None:
    line, said = BAD[name]
    with pytest.raises(BadLine, match=said):
        parse(line)


def test_each_shape_is_told_by_its_fields() -> None:
    assert isinstance(parse(b'{"id": "a", "completion": "x", "prompt": "y", "language": "de"}'), Completion)
    assert isinstance(parse(b'{"id": "a", "messages": []}'), Chat)
    assert parse(b'{"id": 7, "token_ids": [1, 2], "prompt_token_ids": [3]}') == TokenStream(7, (1, 2), (3,))
    assert parse(b'{"series": "ttft", "value": 1, "t": 2.5}') == Measurement("ttft", 1.0, 2.5)
    assert parse(b'{"series": "valid", "value": true}') == Measurement("valid", True)
    assert parse(b'{"series": "finish", "value": "stop"}') == Measurement("finish", "stop")


def test_a_lone_surrogate_and_a_nul_are_text_like_any_other() -> None:
    record = parse(rb'{"id": "\udc00", "completion": "a\ud800b\u0000\uffff\u202e"}')
    assert isinstance(record, Completion)
    assert record.text == "a\ud800b\0\uffff\u202e"


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_raise_anything_but_a_bad_line(line: bytes) -> None:
    with suppress(BadLine):
        parse(line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["id", "completion", "messages", "token_ids", "series", "value", "t", "role", "tools"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_makes_the_reader_raise_anything_but_a_bad_line(value: object) -> None:
    with suppress(BadLine):
        parse(json.dumps(value).encode())


def test_the_text_of_a_message_is_its_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, 3, {"type": "text", "text": "b"}]
    assert [text_of(each) for each in ("x", parts, None, 5, {"text": "no"})] == ["x", "ab", "", "", ""]
