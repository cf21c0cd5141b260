"""From a batch of the embedded engine to one attention call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from checkengine.commands import minimise as minimise_command
from checkengine.commands import replay as replay_command
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.faults import FAULTS, NanAttention, OverRead
from checkengine.engine_shim.faults.blind import BLIND_FAULTS, STRIKES
from checkengine.engine_shim.faults.fault import Fault
from checkengine.guards.errors import UserError
from checkengine.replay.bundle import BundleError, BundleReader, export_bundle, import_bundle, write_bundle
from checkengine.replay.bundle.calls import CallOrigin, StoredCall, call_json, read_call, write_call
from checkengine.replay.bundle.files import Entry
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.minimise import call_passes, reproducer
from checkengine.replay.minimise.beside_passes import with_beside
from checkengine.replay.minimise.budget import Budget
from checkengine.replay.minimise.call_oracle import CallOracle, Case
from checkengine.replay.minimise.convict import convict
from checkengine.replay.minimise.investigate_call import investigate_call
from checkengine.replay.minimise.judge_call import judge_call
from checkengine.replay.minimise.minimise import Minimised, minimise
from checkengine.replay.minimise.reproducer import content_free_reproducer, write_reproducer
from checkengine.replay.minimise.symptom import Place, Shown
from checkengine.replay.minimise.values import Values, made_up, with_values
from checkengine.replay.op_call import OpCall
from checkengine.replay.playback import Playback
from checkengine.replay.windows import build_window

sys.path.insert(0, str(Path(__file__).parent))
from test_executor import executor_over, serve

MASKED, SKIPPED = (FAULTS[name] for name in ("masked_over_read", "skipped_slot"))
CROWDED = "page_end_over_read"
"""Strikes only where several rows run together."""
SMALL_BUNDLE = 64 << 10


@dataclass
class Shrunk:
    capture: Capture
    executor: EmbeddedExecutor
    found: Minimised

    @property
    def call(self) -> OpCall:
        assert self.found.call is not None, self.found.stopped
        return self.found.call

    def write(self, folder: Path, **options: Any) -> Path:
        return write_reproducer(self.found, self.capture, self.executor, folder, **options)

    def shows(self, call: OpCall) -> bool:
        oracle = CallOracle(self.executor, self.found.symptom, Budget(200))
        return oracle.accept(Case(with_values(call, self.found.values), self.found.slot)) is not None


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def shrink() -> Callable[..., Shrunk]:
    """Each fault is served and shrunk once."""
    known: dict[str, Shrunk] = {}

    def make(*faults: Fault, at: int = 25, first: int = 20, name: str = "r1") -> Shrunk:
        key = repr([(vars(fault), fault.name) for fault in faults]) + f"{at} {first} {name}"
        if key not in known:
            engine, capture = serve(faults, at=at, first=first, names=(name,))
            executor = executor_over(engine)
            known[key] = Shrunk(capture, executor, minimise(capture, executor, convict(capture, executor)))
        return known[key]

    return make


def crowded() -> Fault:
    return BLIND_FAULTS[CROWDED](**STRIKES[CROWDED].parameters)


PLAIN: Sequence[tuple[Fault, dict[str, int]]] = (
    (OverRead(block_size=8), {}),
    (MASKED(block_size=8), {}),
    (NanAttention(modulus=8, remainder=1, layer=1), {"at": 22, "first": 0}),
)


@pytest.mark.parametrize(("fault", "when"), PLAIN, ids=lambda value: getattr(value, "name", ""))
def test_six_sequences_become_one_of_a_pages_tokens_at_most_one_layer_and_one_head(
    shrink: Callable[..., Shrunk], fault: Fault, when: dict[str, int]
) -> None:
    shrunk = shrink(fault, **when)
    call = shrunk.call
    assert len(shrunk.capture.window.records[-1].handles) == 6
    assert not call.beside
    assert call.length <= call.block_size + 1
    assert call.query.shape[:2] == (1, 1)
    assert call.keys.shape[2] == 1
    assert shrunk.found.minimal
    assert shrunk.found.replays <= 200
    assert shrunk.found.values is Values.ONES


def test_a_condition_on_the_length_leaves_the_shortest_that_meets_it(shrink: Callable[..., Shrunk]) -> None:
    shrunk = shrink(OverRead(minimum_length=20, block_size=8))
    assert shrunk.call.length == 20
    assert shrunk.shows(shrunk.call)
    assert not shrunk.shows(call_passes.with_length(shrunk.call, 19))


def test_what_lies_behind_a_full_page_in_memory_stays_behind_it(shrink: Callable[..., Shrunk]) -> None:
    shrunk = shrink(OverRead(minimum_length=48, block_size=8))
    call = shrunk.call
    assert call.length == 48
    assert shrunk.found.symptom.relation is not None
    assert shrunk.found.symptom.relation.words == "one past the end"
    assert shrunk.found.slot == int(call.owned[-1]) + 1
    assert shrunk.found.slot // 8 == call.table[-1] + 1
    assert call.blocks.max() <= len(call.blocks) + 1


def test_an_under_read_stays_one_and_as_short_as_its_tile_allows(shrink: Callable[..., Shrunk]) -> None:
    shrunk = shrink(SKIPPED(tile=8))
    assert shrunk.found.symptom.shown is Shown.WRONG_READS
    assert shrunk.found.symptom.fault_class is FaultClass.UNDER_READ
    assert shrunk.call.length == 9
    assert shrunk.found.replays <= 200


def test_rows_that_the_fault_needs_stay_beside_and_no_more(shrink: Callable[..., Shrunk]) -> None:
    shrunk = shrink(crowded())
    call = shrunk.call
    assert 1 <= len(call.beside) < 5
    assert call.length + sum(row.length for row in call.beside) <= 16
    assert shrunk.found.values is not Values.RECORDED
    for index in range(len(call.beside)):
        fewer = [other for other in range(len(call.beside)) if other != index]
        assert not shrunk.shows(with_beside(call, fewer))


def test_nothing_more_can_be_taken_away(shrink: Callable[..., Shrunk]) -> None:
    shrunk = shrink(OverRead(minimum_length=20, block_size=8))
    case = Case(shrunk.call, shrunk.found.slot, shrunk.found.values)
    oracle = CallOracle(shrunk.executor, shrunk.found.symptom, Budget(1000))
    for each in (
        call_passes.fewer_groups,
        call_passes.fewer_heads,
        call_passes.fewer_queries,
        call_passes.shorter,
        call_passes.smaller_pool,
        call_passes.fewer_options,
    ):
        assert each(case, oracle.accept) is case, each.__name__


def test_the_same_capture_gives_the_same_reproducer_each_time(tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        engine, capture = serve([OverRead(minimum_length=20, block_size=8)], at=25, first=20)
        executor = executor_over(engine)
        found = minimise(capture, executor, convict(capture, executor))
        path = write_reproducer(found, replace(capture, time=0.0), executor, tmp_path / str(len(told)))
        told.append((path.name, (path / "call.json").read_bytes(), found.to_dict()))
    assert told[0] == told[1]


def test_a_content_free_bundle_is_small_and_replays_without_any_model(
    shrink: Callable[..., Shrunk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shrink(OverRead(minimum_length=20, block_size=8)).write(tmp_path, content_free=True)
    reader = BundleReader(path)
    reader.verify()
    assert reader.level == "core"
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) <= SMALL_BUNDLE
    assert "model" not in reader.json("env.json")
    monkeypatch.setattr(EmbeddedExecutor, "load", lambda *given: pytest.fail("a model was asked for"))
    ran = CliRunner().invoke(replay_command.app, [str(path), "--json"])
    assert ran.exit_code == 1, ran.output
    told = json.loads(ran.stdout)
    assert told["verdict"]["kind"] == "code defect"
    assert "one past the end" in told["verdict"]["sentence"]
    assert told["reproduced"] is True


def test_a_call_is_run_with_the_kernel_that_is_asked_for_or_refused(
    shrink: Callable[..., Shrunk], tmp_path: Path
) -> None:
    path = str(shrink(OverRead(minimum_length=20, block_size=8)).write(tmp_path, content_free=True))
    ran = CliRunner().invoke(replay_command.app, [path, "--json", "--kernel", "reference"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert (told["reproduced"], told["verdict"]) == (False, None)
    assert "reference kernel in place of the recorded paged" in told["notes"][-1]
    assert CliRunner().invoke(replay_command.app, [path, "--kernel", "float64"]).exit_code == 0
    assert CliRunner().invoke(replay_command.app, [path, "--kernel", "paged"]).exit_code == 1
    for option, words in (("--kernel", "paged, reference, float64"), ("--executor", "only by embedded")):
        refused = CliRunner().invoke(replay_command.app, [path, option, "nosuch"])
        assert isinstance(refused.exception, UserError)
        assert refused.exception.exit_code == 129
        assert words in str(refused.exception)


def test_once_the_kernel_is_mended_the_reproducer_says_so(
    shrink: Callable[..., Shrunk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shrink(OverRead(minimum_length=20, block_size=8)).write(tmp_path, content_free=True)
    monkeypatch.setattr(OverRead, "told", lambda self, lengths, hit: lengths)
    found = investigate_call(BundleReader(path))
    assert found.verdict is not None
    assert found.verdict.kind is VerdictKind.NO_FAULT
    assert found.exit_code == 0


def test_a_reproducer_travels_as_one_file(shrink: Callable[..., Shrunk], tmp_path: Path) -> None:
    path = shrink(OverRead(block_size=8)).write(tmp_path / "here", content_free=True)
    file = export_bundle(path, tmp_path / "fault.checkengine")
    there = import_bundle(file, tmp_path / "there")
    assert investigate_call(BundleReader(there)).reproduced


def hidden_states(shrunk: Shrunk) -> list[torch.Tensor]:
    """What every layer gave for the captured steps."""
    seen: list[torch.Tensor] = []
    layers = shrunk.executor._model.get_decoder().layers
    hooks = [layer.register_forward_hook(lambda module, given, output: seen.append(output)) for layer in layers]
    for _ in Playback(shrunk.executor, build_window(shrunk.capture)):
        pass
    for hook in hooks:
        hook.remove()
    return [output[0] if isinstance(output, tuple) else output for output in seen]


def pairs(tensor: torch.Tensor) -> list[bytes]:
    """Two numbers that stand side by side, 8 bytes."""
    numbers = tensor[torch.isfinite(tensor)].flatten().numpy()
    return [numbers[i : i + 2].tobytes() for i in range(0, len(numbers) - 1, 2) if numbers[i : i + 2].all()]


def canaries(shrunk: Shrunk) -> list[bytes]:
    """Token ids as int32 and as text, names, KV values and hidden states."""
    window = shrunk.capture.window
    tokens = np.concatenate([record.token_ids for record in window.records])
    found = [tokens[i : i + 2].tobytes() for i in range(len(tokens) - 1) if tokens[i : i + 2].all()]
    for start in window.starts.values():
        prompt = start.prompt_tokens
        found += [", ".join(map(str, prompt[i : i + 3])).encode() for i in range(len(prompt) - 2)]
        found.append(f'"{start.name}"'.encode())
    for tensor in (*shrunk.capture.memory.tensors.values(), *hidden_states(shrunk)):
        found += pairs(tensor)
    return found


@pytest.mark.parametrize("kind", [OverRead, MASKED])
def test_not_one_of_ten_thousand_planted_canaries_is_in_a_content_free_bundle(
    shrink: Callable[..., Shrunk], tmp_path: Path, kind: type[Fault]
) -> None:
    shrunk = shrink(kind(block_size=8), first=0)
    planted = canaries(shrunk)
    assert len(planted) >= 10_000
    path = shrunk.write(tmp_path, content_free=True)
    written = b"\n".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert not [canary for canary in planted if canary in written]


def test_the_scan_for_canaries_finds_them_where_they_are_in_the_clear(shrink: Callable[..., Shrunk]) -> None:
    shrunk = shrink(OverRead(block_size=8))
    planted = set(canaries(shrunk))
    clear = b"".join(tensor.numpy().tobytes() for tensor in shrunk.capture.memory.tensors.values())
    held = [pair for tensor in shrunk.capture.memory.tensors.values() for pair in pairs(tensor)]
    assert planted >= set(held)
    assert all(canary in clear for canary in held[::50])


def test_a_fault_that_needs_its_values_is_not_content_free_and_keeps_them_encrypted(
    shrink: Callable[..., Shrunk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk = shrink(OverRead(block_size=8))
    recorded = Shrunk(shrunk.capture, shrunk.executor, replace(shrunk.found, values=Values.RECORDED))
    noise = torch.randn(shrunk.call.keys.shape)
    recorded.found.call = replace(shrunk.call, keys=noise)
    with pytest.raises(CannotReplayError, match="depends on the recorded values"):
        recorded.write(tmp_path, content_free=True)
    assert not list(tmp_path.glob("*minimal*"))
    path = recorded.write(tmp_path)
    assert BundleReader(path).level == "full"
    written = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert noise.numpy().tobytes()[:64] not in written
    stored = read_call(BundleReader(path))
    assert torch.equal(stored.call.keys, noise)
    assert investigate_call(BundleReader(path)).reproduced


def test_a_first_incident_leaves_a_content_free_reproducer_named_after_its_parent(
    shrink: Callable[..., Shrunk], tmp_path: Path
) -> None:
    shrunk = shrink(OverRead(block_size=8))
    parent = write_bundle(shrunk.capture, tmp_path / "parent")
    path = content_free_reproducer(shrunk.capture, shrunk.executor, tmp_path / "out", parent=parent)
    assert path is not None
    lineage = BundleReader(path).json("lineage.json")
    assert lineage["parent"] == {"manifest_sha256": reproducer.digest_of(parent)}
    assert BundleReader(path).findings[0].kind == shrunk.capture.findings[0].kind
    assert BundleReader(path).findings[0].sequence == ""


def test_a_right_kernel_leaves_no_reproducer(tmp_path: Path) -> None:
    engine, capture = serve(at=25, first=20)
    assert content_free_reproducer(capture, executor_over(engine), tmp_path / "out") is None
    assert not (tmp_path / "out").exists()


def test_the_command_writes_beside_the_bundle_and_tells_its_passes(
    shrink: Callable[..., Shrunk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk = shrink(OverRead(minimum_length=20, block_size=8))
    bundle = write_bundle(shrunk.capture, tmp_path, content="full")
    monkeypatch.setattr("checkengine.replay.find_executor.find_executor", lambda environment: shrunk.executor)
    ran = CliRunner().invoke(minimise_command.app, [str(bundle), "--content-free", "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["size"]["tokens"] == 20
    assert told["content_free"]
    assert Path(told["bundle"]).parent == tmp_path
    again = CliRunner().invoke(minimise_command.app, [told["bundle"]])
    assert isinstance(again.exception, BundleError)
    assert "one op's call" in str(again.exception)


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> BundleReader:
    """The bundle with another call.json, sealed as its writer would."""
    told = json.loads((path / "call.json").read_text())
    change(told)
    data = json.dumps(told).encode()
    (path / "call.json").write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["call.json"] = Entry.of(data).to_json()
    sealed = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(sealed)
    marker = json.loads((path / "BUNDLE").read_text()) | {"manifest": Entry.of(sealed).to_json()}
    (path / "BUNDLE").write_text(json.dumps(marker))
    return BundleReader(path)


WRONG: dict[str, Callable[[dict[str, Any]], None]] = {
    "a shape of a terabyte": lambda told: told["shapes"].update(keys=[1 << 20, 8, 1, 1 << 20]),
    "a negative shape": lambda told: told["shapes"].update(query=[-1, 1, 12]),
    "a table that leaves the memory": lambda told: told.update(table=[7, 8, 9]),
    "a length beyond the table": lambda told: told.update(length=10**6),
    "a length that is no number": lambda told: told.update(length="long"),
    "a dtype that runs code": lambda told: told["dtypes"].update(query="load"),
    "a dtype of integers": lambda told: told["dtypes"].update(query="int32"),
    "blocks twice": lambda told: told.update(blocks=[1, 1, 1]),
    "heads that do not divide": lambda told: told["shapes"].update(query=[1, 0, 12]),
    "rows beside without tensors": lambda told: told.update(beside=[{"table": [1], "length": 1}]),
    "a place that is not there": lambda told: told.update(place=3),
    "no values": lambda told: told.pop("values"),
    "values of another kind": lambda told: told["values"].update(are="pickle"),
    "a slot that is no number": lambda told: told.update(slot="9"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_call_is_refused_with_one_clear_error(
    shrink: Callable[..., Shrunk], tmp_path: Path, wrong: str
) -> None:
    path = shrink(OverRead(minimum_length=20, block_size=8)).write(tmp_path, content_free=True)
    with pytest.raises(BundleError, match=r"call\.json is not as the format says"):
        read_call(changed(path, WRONG[wrong]))


def test_made_up_values_are_the_same_bits_after_a_round_trip(shrink: Callable[..., Shrunk], tmp_path: Path) -> None:
    shrunk = shrink(crowded())
    for values in (Values.NOISE, Values.ONES, Values.ONE_HOT):
        call = with_values(shrunk.call, values)
        stored = StoredCall(call, shrunk.found.symptom.to_json(), shrunk.found.slot, values)
        again = read_call(BundleReader(write_call(stored, tmp_path / values, CallOrigin({}))))
        assert call_json(again) == call_json(stored)
        assert torch.equal(again.call.keys, call.keys)
        assert all(torch.equal(a.query, b.query) for a, b in zip(again.call.beside, call.beside, strict=True))


def test_noise_keeps_its_bits_for_ever() -> None:
    made = made_up({"query": (1, 1, 6)}, Values.NOISE, 0)["query"]
    assert (made * 32).flatten().tolist() == [-17.0, -115.0, -17.0, -98.0, 118.0, -24.0]
    assert torch.equal(made.to(torch.bfloat16).float(), made)


def test_a_judged_call_is_told_by_its_class(shrink: Callable[..., Shrunk]) -> None:
    for fault, fault_class in (
        (OverRead(block_size=8), FaultClass.OVER_READ),
        (SKIPPED(tile=8), FaultClass.UNDER_READ),
    ):
        verdict = judge_call(EmbeddedExecutor(), shrink(fault).call)
        assert verdict.kind is VerdictKind.CODE_DEFECT
        assert verdict.fault_class is fault_class
    right = replace(shrink(OverRead(block_size=8)).call, options={})
    assert judge_call(EmbeddedExecutor(), right).kind is VerdictKind.NO_FAULT


def test_the_guilty_slots_relation_is_kept_and_not_merely_a_failure(shrink: Callable[..., Shrunk]) -> None:
    relation = shrink(OverRead(block_size=8)).found.symptom.relation
    assert relation is not None
    assert (relation.place, relation.distance) == (Place.PAST_END, 1)
