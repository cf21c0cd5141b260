"""Scheduler messages as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.benchmarks.vllm_traffic import CachedRequests, Message, NewRequest, Parameters, Traffic
from checkengine.engine_shim.vllm.messages import UNKNOWN, from_record, to_record
from checkengine.replay.executor import CannotReplayError

TYPES = {kind.__name__: kind for kind in (Message, NewRequest, CachedRequests, Parameters)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_a_message_comes_back_from_json_as_it_was(seed: int) -> None:
    traffic = Traffic(seed)
    for _ in range(10):
        message, _ = traffic.step()
        told = json.loads(json.dumps(to_record(message, "1.2")))
        assert from_record(told, TYPES) == message
        traffic.outcome(message)


@dataclasses.dataclass
class Later:
    """A message of a newer version."""

    rows: list[int]
    bitmask: np.ndarray
    new_option: int | None = None


@dataclasses.dataclass
class Earlier:
    rows: list[int]
    bitmask: np.ndarray


def test_a_field_that_this_version_lacks_survives_where_it_says_nothing() -> None:
    told = to_record(Later([1], np.arange(4, dtype=np.int32)), "2.0")
    read = from_record(told, {"Later": Earlier})
    assert (read.rows, read.bitmask.tolist()) == ([1], [0, 1, 2, 3])
    assert getattr(read, UNKNOWN) == {"new_option": None}
    again = to_record(read, "1.0")["message"]
    assert again | {"$type": "Later"} == told["message"]


def test_a_field_that_decides_something_and_is_not_known_here_is_refused_as_cannot_judge() -> None:
    told = to_record(Later([1], np.zeros(1, np.int32), 3), "2.0")
    with pytest.raises(CannotReplayError, match=r"vLLM 2\.0.*new_option") as caught:
        from_record(told, {"Later": Earlier})
    assert caught.value.exit_code == 125


class Kind(enum.Enum):
    FIRST = 1


@dataclasses.dataclass
class Named:
    kind: Kind


def test_an_enumerated_value_comes_back_as_what_it_was() -> None:
    told = json.loads(json.dumps(to_record(Named(Kind.FIRST), "1")))
    assert from_record(told, {"Named": Named, "Kind": Kind}) == Named(Kind.FIRST)
    with pytest.raises(CannotReplayError, match="no Kind"):
        from_record(told, {"Named": Named})


@pytest.mark.parametrize(
    "told",
    [
        {"format": 9},
        {"format": 1, "message": {"$type": "Gone"}},
        {"format": 1, "message": {"$left_out": "Tensor"}},
        {"format": 1, "message": {"strange": 1}},
        {"format": 1, "message": {"$array": "!", "dtype": "int32", "shape": [1]}},
        {"format": 1},
    ],
)
def test_a_record_that_cannot_be_read_is_told_in_one_error(told: dict[str, object]) -> None:
    with pytest.raises(CannotReplayError):
        from_record(told, TYPES)


def test_what_json_cannot_carry_is_named_and_not_told() -> None:
    assert to_record(NewRequest("a", [1], ([2],), 0, lora_request=object()), "1")["message"]["lora_request"] == {
        "$left_out": "object"
    }
