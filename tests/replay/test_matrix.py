"""One bundle on several hosts: equal, rounding, or a device that is wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from checkengine.replay.executor import ReplayError
from checkengine.replay.investigate import CANNOT_JUDGE, NOT_REPRODUCED, REPRODUCED
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.matrix import HostResult, command_of, compare, run_matrix


def told(
    *, fires: bool | None = False, kind: str = "inconclusive", fault: str | None = None, bits: int = 1
) -> dict[str, Any]:
    return {
        "reproduced": fires,
        "verdict": {"kind": kind, "sentence": f"it is {kind}", "fault_class": fault},
        "bits": {"7": [["attention", 0, 1, 5], ["attention", 1, 1, bits]], "8": [["logits", 0, bits, 3]]},
    }


def matrix_of(*results: dict[str, Any]):
    return compare([HostResult(f"h{number}", result) for number, result in enumerate(results)])


def test_equal_bits_everywhere_are_said_to_be_equal() -> None:
    matrix = matrix_of(told(), told(), told())
    assert matrix.kind is VerdictKind.INCONCLUSIVE
    assert "the same bits of every op" in matrix.sentence
    assert (matrix.first_difference, matrix.exit_code) == (None, NOT_REPRODUCED)


def test_other_bits_within_rounding_on_each_are_no_device_fault() -> None:
    matrix = matrix_of(told(bits=1), told(bits=2))
    assert matrix.kind is VerdictKind.INCONCLUSIVE
    assert matrix.first_difference == {"hosts": ["h0", "h1"], "step": 7, "op": "attention", "layer": 1}
    assert "no host goes beyond rounding" in matrix.sentence


def test_a_defect_on_one_device_only_is_device_specific() -> None:
    wrong = told(fires=True, kind="code defect", fault="wrong arithmetic", bits=9)
    matrix = matrix_of(told(), wrong, told())
    assert matrix.kind is VerdictKind.DEVICE_SPECIFIC
    assert "h1: the finding fires, a defect (wrong arithmetic)" in matrix.sentence
    assert matrix.to_dict()["verdict"]["persistence"] == "persistent"
    assert matrix.exit_code == REPRODUCED


def test_the_same_defect_on_all_devices_is_not_a_devices() -> None:
    wrong = told(fires=True, kind="code defect", fault="over-read")
    assert matrix_of(wrong, wrong).kind is VerdictKind.CODE_DEFECT


def test_a_host_that_does_not_repeat_is_told_before_anything_is_compared() -> None:
    matrix = matrix_of(told(), told(kind="run-to-run nondeterminism"))
    assert matrix.kind is VerdictKind.NONDETERMINISM
    assert "on h1" in matrix.sentence


def test_hosts_that_cannot_be_reached_leave_nothing_to_compare_and_are_named() -> None:
    matrix = compare([HostResult("a", told()), HostResult("b", None, "no route to host")])
    assert matrix.kind is VerdictKind.INCONCLUSIVE
    assert matrix.notes == ["b: no route to host"]
    assert matrix.exit_code == CANNOT_JUDGE


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "", "a b", "local:NAME"])
def test_a_host_that_a_command_line_would_misread_is_refused(host: str) -> None:
    with pytest.raises(ReplayError, match="--matrix"):
        command_of(host, "ssh {host} checkengine")


def test_variables_of_a_local_entry_are_set_and_a_template_is_split_before_the_name_goes_in() -> None:
    command, variables = command_of("local:ATEN_CPU_CAPABILITY=avx2,OMP_NUM_THREADS=2", "")
    assert variables == {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"}
    assert command[-3:] == ["-", "--json", "--bits"]
    assert command_of("gpu;1", "ssh -p 22 {host} x")[0] == ["ssh", "-p", "22", "gpu;1", "x"]


def test_a_bundle_goes_to_each_host_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps(told())
    fake = tmp_path / "ssh"
    fake.write_text(
        f"#!/bin/sh\nif [ \"$1\" = down ]; then echo 'no route' >&2; exit 255; fi\n"
        f"cat > {tmp_path}/$1\necho '{answer}'\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    matrix = run_matrix(["one", "two", "down"], b"the bundle")
    assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"the bundle"] * 2
    assert [result.error for result in matrix.results] == ["", "", "no route"]
    assert "the same bits" in matrix.sentence
