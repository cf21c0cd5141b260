"""Many bundles: none lost and none counted twice, whoever is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from checkengine.fanning import schedulers
from checkengine.fanning.ledger import Ledger
from checkengine.fanning.local import TRIES, replay_command, run_all
from checkengine.guards.errors import UserError

SH = "/bin/sh"


def test_of_a_thousand_bundles_whose_processes_are_killed_none_is_lost_or_counted_twice(tmp_path: Path) -> None:
    """Every third process dies of SIGKILL at its first try; each bundle's outcome is its number modulo 3."""
    died = tmp_path / "died"
    died.mkdir()
    names = [f"b{number:04d}" for number in range(1000)]

    def command(name: str) -> list[str]:
        number = int(name[1:])
        kill = f"[ -e {died}/{name} ] || {{ : > {died}/{name}; kill -9 $$; }};" if number % 3 == 0 else ""
        return [SH, "-c", f"{kill} exit {(0, 1, 125)[number % 3]}"]

    ledger = Ledger(tmp_path / "results")
    counts = run_all(names, command, ledger, 4)
    assert counts == {"not reproduced": 334, "reproduced": 333, "cannot be judged": 333}
    assert len(list(died.iterdir())) == 334
    assert sorted(path.stem for path in ledger.directory.glob("*.json")) == names


def test_a_fan_out_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    names = [f"b{number}" for number in range(60)]
    script = (
        "import sys; from pathlib import Path; from checkengine.fanning.local import run_all;"
        "from checkengine.fanning.ledger import Ledger;"
        f"names = {names!r};"
        f"run_all(names, lambda name: ['/bin/sh', '-c', f'echo {{name}} >> {runs}'], Ledger(Path(sys.argv[1])), 2)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "results")])
    while not runs.exists() or len(runs.read_text().splitlines()) < 10:
        assert process.poll() is None
    process.kill()
    process.wait()
    ledger = Ledger(tmp_path / "results")
    before = {name for name in names if ledger.has(name)}
    assert before != set(names)
    again: list[str] = []

    def command(name: str) -> list[str]:
        again.append(name)
        return ["/bin/true"]

    assert run_all(names, command, ledger, 2) == {"not reproduced": 60}
    assert set(again) == set(names) - before


def test_a_bundle_whose_process_always_dies_is_settled_as_failed_with_its_last_words(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results")
    tries = tmp_path / "tries"
    counts = run_all(["b"], lambda name: [SH, "-c", f"echo x >> {tries}; echo 'no memory' >&2; kill -9 $$"], ledger, 1)
    assert counts == {"failed": 1}
    assert len(tries.read_text().splitlines()) == TRIES
    assert json.loads((tmp_path / "results/b.json").read_text())["error"] == "no memory"


def test_the_first_result_of_a_bundle_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.settle("b", 1, {})
    assert not ledger.settle("b", 0, {})
    assert ledger.counts() == {"reproduced": 1}


def test_results_that_cannot_be_kept_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="results cannot be kept"):
        Ledger(tmp_path / "file")


def test_the_kubernetes_job_has_an_index_a_bundle_and_takes_exit_codes_for_results() -> None:
    told = json.loads(schedulers.kubernetes(["one", "two"], "s3://b/x", 8, "image:1"))
    names, job = told["items"]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][-1].endswith(" --repeats 0")
    assert names["data"]["names"] == "one\ntwo\n"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    rule = spec["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailIndex", [1, 125, 129])
    with pytest.raises(UserError, match="do not fit"):
        schedulers.kubernetes(["x" * 100] * 10_000, "s3://b", 8, "image")


def test_the_slurm_script_is_a_script_that_runs_one_bundle_a_task(tmp_path: Path) -> None:
    hostile = "b'; touch hacked; '"
    script = tmp_path / "job.sh"
    script.write_text(schedulers.slurm(["a", hostile], "dir with space", 3))
    assert "#SBATCH --array=0-1%3" in script.read_text()
    fake = tmp_path / "checkengine"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 125\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "0"}
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (125, "a 125\n")
    assert (tmp_path / "checkengine-replay-a.json").read_text() == "replay|dir with space/a|--json|--repeats|0|"
    assert not (tmp_path / "hacked").exists()


def test_the_ray_script_is_python() -> None:
    text = schedulers.ray(["a", 'b"'], "s3://b", 3)
    compile(text, "ray_job.py", "exec")
    assert "max_retries=3" in text
    assert '*["--json", "--repeats", "0"]]' in text


def test_a_local_replay_repeats_nothing_in_fresh_processes() -> None:
    assert list(replay_command("s3://b/")("one"))[-4:] == ["s3://b/one", "--json", "--repeats", "0"]
