"""Text comes out in whole characters, and never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checkengine.engine_shim.engine.outlet import Outlet
from checkengine.engine_shim.engine.stops import TextStream


def decode_bytes(tokens: Sequence[int]) -> str:
    """One byte a token, as the worst of tokenizers."""
    return bytes(tokens).decode("utf-8", errors="replace")


def pieces(text: str, stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    stream = TextStream(decode_bytes, stop)
    out = []
    for byte in text.encode():
        out.append(stream.push(byte))
        if stream.stopped:
            break
    out.append(stream.finish())
    return out, stream.stopped


@given(st.text(max_size=40))
def test_the_pieces_are_the_text(text: str) -> None:
    out, _ = pieces(text)
    assert "".join(out) == text


def test_a_character_of_four_tokens_comes_out_at_once() -> None:
    assert pieces("a😀b")[0] == ["a", "", "", "", "😀", "b", ""]


def test_a_stop_string_and_what_follows_never_come_out() -> None:
    out, stopped = pieces("Hello END world", stop=["END"])
    assert ("".join(out), stopped) == ("Hello ", True)
    assert all("E" not in piece for piece in out)


def test_what_only_began_like_a_stop_string_comes_out() -> None:
    out, stopped = pieces("ENEN. EN", stop=["END"])
    assert ("".join(out), stopped) == ("ENEN. EN", False)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    out, stopped = pieces(text, stop)
    ends = [text.find(string) + len(string) for string in stop if string in text]
    assert stopped == bool(ends)
    if ends:
        seen = text[: min(ends)]
        assert "".join(out) == seen[: min(seen.find(string) for string in stop if string in seen)]
    else:
        assert "".join(out) == text


def test_broken_bytes_come_out_as_replacement_characters() -> None:
    stream = TextStream(decode_bytes)
    text = "".join(stream.push(token) for token in [0xF0, 0x9F, 0x41, 0x42])
    assert text + stream.finish() == "�AB"


def test_words_keep_their_spaces(demo_model: tuple[Any, Any]) -> None:
    _, tokenizer = demo_model
    text = "Well, hello there: 3 + 4 = 7.\n\n  Indented — naïve café 😀😀 日本語 end"
    stream = TextStream(lambda tokens: str(tokenizer.decode(tokens)))
    assert "".join(stream.push(token) for token in tokenizer(text)["input_ids"]) + stream.finish() == text


def test_held_back_tokens_can_still_be_dropped() -> None:
    outlet = Outlet(lambda: TextStream(decode_bytes), hold_back=2)
    for byte in b"abcd":
        outlet.push(byte)
    assert outlet.take() == ((97, 98), "ab")
    outlet.rewind(list(b"abc"))
    outlet.push(ord("x"))
    assert outlet.finish() == ((99, 120), "cx")
