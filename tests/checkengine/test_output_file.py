"""Files that commands are asked to write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkengine.guards.errors import UserError
from checkengine.output_file import write_output

ON_A_FULL_DISK = """
import resource, signal, sys
from checkengine.output_file import write_output
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    from pathlib import Path
    write_output(Path(sys.argv[1]), "x" * 5000, "the report")
except Exception as error:
    print(type(error).__name__, error)
"""


def on_a_full_disk(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", ON_A_FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("before", ["what was there", None])
def test_a_file_that_does_not_fit_leaves_what_was_there_and_nothing_else(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "report.html"
    if before is not None:
        path.write_text(before)
    told = on_a_full_disk(path)
    assert told.startswith(f"UserError the report cannot be written to {path}: ")
    assert [each.name for each in tmp_path.iterdir()] == (["report.html"] if before else [])
    assert before is None or path.read_text() == before


def test_a_file_that_is_written_anew_keeps_who_may_read_it_and_what_it_is_linked_to(tmp_path: Path) -> None:
    path, link = tmp_path / "real.html", tmp_path / "link.html"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_output(link, "new\ud800", "the report")
    assert path.read_text() == "new\\ud800"
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_a_pipe_is_written_to_as_it_is() -> None:
    read, write = os.pipe()
    write_output(Path(f"/dev/fd/{write}"), "text", "the report")
    os.close(write)
    with os.fdopen(read) as source:
        assert source.read() == "text"


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the plot cannot be written to .*no.x\.svg: No such file or directory"):
        write_output(tmp_path / "no" / "x.svg", "", "the plot")
