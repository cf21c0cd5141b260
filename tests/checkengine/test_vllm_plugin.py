"""The switch that puts guards into vLLM, on doubles of its configuration; and what `doctor` says of a vLLM."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkengine import vllm_classes, vllm_guarding, vllm_plugin, vllm_setup
from checkengine.doctoring import diagnosis, lines
from checkengine.engine_shim.vllm import versions
from checkengine.engine_shim.vllm.versions import WANTED, Hook, hooks, tell

CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
CPU = SimpleNamespace(is_cpu=lambda: True, is_xpu=lambda: False, is_cuda_alike=lambda: False, device_name="cpu")


def configuration(additional: Any = None, *, asynchronous: bool = False, worker: str = CPU_WORKER) -> Any:
    return SimpleNamespace(
        additional_config=additional or {},
        parallel_config=SimpleNamespace(worker_cls=worker),
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=asynchronous),
    )


class Arguments:
    """vLLM's EngineArgs."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def create_engine_config(self) -> Any:
        return self.made


@pytest.fixture(autouse=True)
def _as_if_vllm_were_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (vllm_plugin.VARIABLE, vllm_plugin.PAGES, "CHECKENGINE_CONFIG", "PROMETHEUS_MULTIPROC_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vllm_setup, "_platform", lambda: CPU)
    monkeypatch.setattr(vllm_setup, "hooks", lambda: [Hook("worker", "w", True)])
    monkeypatch.setattr(vllm_setup, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(vllm_setup, "PAGES_OF_THIS_PROCESS", SimpleNamespace(share=lambda: None))
    for name in ("GuardedWorker", "GuardedScheduler", "GuardedAsyncScheduler"):
        monkeypatch.setitem(vars(vllm_classes), name, object)


def created(made: Any) -> Any:
    return vllm_plugin.guarded_configuration(Arguments.create_engine_config)(Arguments(made))


def classes(made: Any) -> tuple[str, Any]:
    return made.parallel_config.worker_cls, made.scheduler_config.scheduler_cls


def test_installing_alone_changes_nothing() -> None:
    assert classes(created(configuration())) == (CPU_WORKER, None)


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_one_variable_puts_guards_in(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.VARIABLE, value)
    assert classes(created(configuration())) == (vllm_plugin.WORKER, vllm_plugin.SCHEDULER)
    assert classes(created(configuration(asynchronous=True)))[1] == vllm_plugin.ASYNC_SCHEDULER


def test_one_flag_puts_guards_in_and_outweighs_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert classes(created(configuration({"checkengine": True})))[0] == vllm_plugin.WORKER
    monkeypatch.setenv(vllm_plugin.VARIABLE, "1")
    assert classes(created(configuration({"checkengine": False})))[0] == CPU_WORKER


def test_the_flag_may_name_the_configuration_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKENGINE_CONFIG", "")
    (tmp_path / "mine.toml").write_text('[guards.salad]\naction = "stop"\n')
    created(configuration({"checkengine": "mine.toml"}))
    assert os.environ["CHECKENGINE_CONFIG"] == str(tmp_path / "mine.toml")


def test_a_configuration_that_cannot_be_used_costs_the_guards_and_not_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkengine.toml").write_text("[guards.salad]\naction = 'loudly'\nwndow = 3\n")
    assert classes(created(configuration({"checkengine": True}))) == (CPU_WORKER, None)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "checkengine: NO GUARDS, vLLM serves without them:"
    assert [("line 2" in line, "line 3" in line) for line in told[1:]] == [(True, False), (False, True)]
    assert "Traceback" not in caplog.text, "one line for each fault"


def test_a_failure_of_our_own_costs_the_guards_and_is_told_with_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm_setup, "load_settings", None)
    assert classes(created(configuration({"checkengine": True}))) == (CPU_WORKER, None)
    assert "cannot be guarded" in caplog.text
    assert "put_guards" in caplog.text


def test_a_worker_of_the_user_s_own_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    made = configuration({"checkengine": True}, worker="mine.Worker")
    assert classes(created(made)) == ("mine.Worker", None)
    assert "derive it from checkengine.vllm_classes.Worker" in caplog.text


def test_without_its_hooks_vllm_serves_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = Hook("scheduler", "Scheduler.update_from_output", False, "is not there (AttributeError)")
    monkeypatch.setattr(vllm_setup, "hooks", lambda: [lacking])
    assert classes(created(configuration({"checkengine": True}))) == (CPU_WORKER, None)
    assert "scheduler is off, since Scheduler.update_from_output is not there" in caplog.text


def test_registering_in_an_environment_without_vllm_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    vllm_plugin.register()
    assert "serves without guards" in caplog.text


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.32.0", True), ("0.32.1.dev3+cpu", True), ("0.33.0", False), ("0.31.9", False), ("", False), ("main", False)],
)
def test_the_tested_versions_are_known(version: str, expected: bool) -> None:
    assert versions.tested(version) is expected


def test_an_untested_version_is_told_with_the_hooks_that_it_has(caplog: pytest.LogCaptureFixture) -> None:
    tell("0.41.0", [Hook("worker", "w", True), Hook("quarantine", "q", False, "has no evict")])
    assert "this is 0.41.0. 1 of its 2 hooks were found; not found: q" in caplog.text
    assert "quarantine is off, since q has no evict" in caplog.text


def test_a_tested_version_with_all_hooks_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tell("0.32.0", [Hook("worker", "w", True)])
    assert caplog.text == ""


def test_hooks_are_looked_for_by_name_member_and_argument() -> None:
    class Worker:
        def execute_model(self, scheduler_output: Any) -> None: ...

    class Renamed:
        def execute_model(self, plan: Any) -> None: ...

    wanted = next(each for each in WANTED if each.path.endswith("Worker.execute_model"))

    def found_in(offered: Any) -> Hook:
        return next(hook for hook in hooks(lambda path: offered) if hook.name == wanted.path)

    assert found_in(Worker.execute_model).works
    assert found_in(Renamed.execute_model).note == "does not take (scheduler_output)"
    state = next(hook for hook in hooks(lambda path: SimpleNamespace(logits=1)) if "ExecuteModelState" in hook.name)
    assert state.note == "has no spec_decode_metadata"


def test_without_vllm_no_hook_is_there_and_nothing_raises() -> None:
    assert not any(hook.works for hook in hooks())
    assert lines(diagnosis(""))[1] == "vLLM: not installed here"


def test_the_doctor_says_what_will_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    healthy = diagnosis("0.32.0", [Hook("worker", "w", True)])
    assert healthy["vllm"]["off"] == []
    assert "all 1 hooks are there" in "\n".join(lines(healthy))
    lacking = diagnosis("0.40.0", [Hook("metrics", "m", False, "is not there (ImportError)")])
    assert lines(lacking)[1] == "vLLM 0.40.0: not tested: the tests ran on 0.32 up to, not including, 0.33"
    assert "  off: metrics: m is not there (ImportError)" in lines(lacking)


def test_the_doctor_sees_that_vllm_was_told_to_load_other_plugins_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert diagnosis("0.32.0", [])["vllm"]["off"][0]["why"] == "names other plugins: add checkengine to it"


def test_a_platform_that_nobody_knows_is_named() -> None:
    nowhere = SimpleNamespace(
        is_cpu=lambda: False, is_xpu=lambda: False, is_cuda_alike=lambda: False, device_name="abacus"
    )
    with pytest.raises(ImportError, match="'abacus'"):
        vllm_classes.worker_name(nowhere)


def test_what_is_told_stands_in_vllm_s_log_unless_another_one_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    ours, theirs = logging.getLogger("checkengine"), logging.getLogger("vllm")
    for logger in (ours, theirs):
        for name in ("handlers", "propagate", "level"):
            monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr(theirs, "handlers", [Handler()])
    theirs.setLevel(logging.INFO)
    vllm_guarding.join_vllm_s_log()
    assert ours.propagate, "pytest's handlers are the root's"
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    vllm_guarding.join_vllm_s_log()
    logging.getLogger("checkengine.capture").info("bundle b is written")
    assert lines == ["bundle b is written"]
    ours._cache.clear()  # type: ignore[attr-defined]
