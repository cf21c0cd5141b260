"""checkengine.toml and the environment: what is right is read, what is wrong is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkengine.config import ConfigurationError, Settings, as_toml, load_settings
from checkengine.toml_lines import line_of


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No test reads this machine's own configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHECKENGINE_CONFIG", raising=False)


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "my.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def fault(path: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path)
    return str(caught.value)


def test_without_a_file_the_defaults_hold():
    settings = load_settings()
    assert settings == Settings()
    assert (settings.guards.nonfinite.action, settings.guards.repetition.action) == ("stop", "observe")


def test_a_file_sets_what_it_names_and_leaves_the_rest(written):
    settings = load_settings(written('[guards.repetition]\naction = "stop"\n[brake]\nminimum_stopped = 9\n'))
    assert settings.guards.repetition.action == "stop"
    assert settings.guards.repetition.minimum_copies == Settings().guards.repetition.minimum_copies
    assert settings.brake.minimum_stopped == 9


def test_the_file_in_the_working_directory_is_read_and_a_variable_names_another(tmp_path, written, monkeypatch):
    (tmp_path / "checkengine.toml").write_text("[recorder]\nsteps = 5000\n")
    assert load_settings().recorder.steps == 5000
    monkeypatch.setenv("CHECKENGINE_CONFIG", str(written("[recorder]\nsteps = 6000\n")))
    assert load_settings().recorder.steps == 6000


def test_the_environment_outweighs_the_file(written, monkeypatch):
    path = written('[guards.repetition]\naction = "stop"\nminimum_copies = 4\n')
    monkeypatch.setenv("CHECKENGINE_GUARDS__REPETITION__ACTION", "warn")
    repetition = load_settings(path).guards.repetition
    assert (repetition.action, repetition.minimum_copies) == ("warn", 4)


def test_an_unknown_key_is_named_with_file_line_and_what_is_allowed(written):
    path = written('# mine\n[guards.repetition]\naction = "stop"\nminimum_copy = 4\n')
    message = fault(path)
    assert message.startswith(f"{path}, line 4: unknown key 'minimum_copy' in [guards.repetition]")
    assert "did you mean 'minimum_copies'?" in message
    assert "short_span" in message


def test_an_unknown_section_is_named_with_its_line(written):
    path = written("[brake]\n\n[gards]\n")
    assert fault(path).startswith(f"{path}, line 3: unknown key 'gards'; did you mean 'guards'?")


def test_a_bad_value_is_named_with_its_line_and_what_is_allowed(written):
    path = written('[guards]\nmaximum_retries = 1\n\n[guards.language]\naction = "halt"\n')
    message = fault(path)
    assert message.startswith(f'{path}, line 5: guards.language.action = "halt"')
    assert "'off', 'observe', 'warn', 'stop' or 'retry'" in message


def test_a_value_out_of_bounds_says_the_bound(written):
    path = written("[recorder]\nsteps = 0\n")
    assert fault(path) == f"{path}, line 2: recorder.steps = 0: Input should be greater than or equal to 1"


def test_a_value_in_a_tables_place_says_that_a_table_is_wanted(written):
    path = written("guards = 3\n")
    assert fault(path) == f"{path}, line 1: guards must be a table, [guards], not 3"


def test_every_fault_of_a_file_has_a_line_of_its_own(written):
    lines = fault(written("[brake]\nwindow_seconds = -1\n[recorder]\nstep = 9\n")).splitlines()
    assert len(lines) == 2
    assert "line 2" in lines[0]
    assert "line 4" in lines[1]


def test_broken_toml_is_named_with_its_line(written):
    path = written("[brake]\nwindow_seconds = \n")
    message = fault(path)
    assert message.startswith(f"{path}: not valid TOML")
    assert "line 2" in message


def test_a_named_file_that_does_not_exist_is_an_error(tmp_path):
    assert "No such file" in fault(tmp_path / "absent.toml")


def test_a_file_that_is_not_utf8_is_an_error(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    assert "not UTF-8" in fault(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("CHECKENGINE_GUARDS__REPETITION__ACTION", "halt", "Input should be 'off'"),
        ("CHECKENGINE_GUARDS__REPETITION__ACTON", "stop", "did you mean 'action'?"),
        ("CHECKENGINE_GARDS__REPETITION__ACTION", "stop", "did you mean 'guards'?"),
    ],
)
def test_a_fault_in_the_environment_names_the_variable(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    message = fault()
    assert message.startswith(f"environment variable {name}")
    assert says in message


def test_variables_that_are_no_settings_are_left_alone(monkeypatch):
    monkeypatch.setenv("CHECKENGINE_CACHE", "/somewhere")
    assert load_settings() == Settings()


def test_settings_written_out_read_back_the_same(written):
    changed = load_settings(written('[guards.tool_calls]\naction = "stop"\n[capture]\ndirectory = "a \\"b\\" ü"\n'))
    assert load_settings(written(as_toml(changed))) == changed


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\nb = 2\n", ("b",), 2),
        ("[t]\n# x\nk = 1", ("t", "k"), 3),
        ("t.k = 1\nt.l = 2", ("t", "l"), 2),
        ("\"t\" . 'k' = 1", ("t", "k"), 1),
        ("t = {k = 1}", ("t", "k"), 1),
        ("x = [\n  1,\n  2,\n]\nk = 3", ("k",), 5),
        ("x = [\n  1,\n  2,\n]\n", ("x",), 1),
        ('x = """\n[t]\nk = 1\n"""\n[t]\nk = 2', ("t", "k"), 6),
        ("[[t]]\nk = 1\n[[t]]\nk = 2", ("t", 1, "k"), 4),
        ("[t]\n[t.u]\nk=1", ("t", "absent"), None),
    ],
)
def test_the_line_of_a_key_is_found_however_toml_spells_it(text, path, line):
    assert line_of(text, path) == line


def test_a_byte_order_mark_and_windows_line_ends_are_read_as_any_editor_means_them(tmp_path):
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 9000\r\n")
    assert load_settings(path).server.port == 9000
    path.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 9000\r\nprot = 1\r\n")
    assert "line 3: unknown key 'prot'" in fault(path)


def test_a_file_without_end_is_refused_and_not_read_into_memory():
    assert "not a configuration" in fault(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000], ids=["nesting", "digits"])
def test_toml_that_its_parser_gives_up_on_is_one_clear_line(written, text):
    message = fault(written(text))
    assert "not valid TOML" in message
    assert "\n" not in message


def test_a_variable_nested_without_end_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("CHECKENGINE_GUARDS__REPETITION", "[" * 100_000)
    assert fault().startswith("environment: ")


def test_of_thousands_of_faults_the_first_are_told_and_the_rest_are_counted(written):
    lines = fault(written("".join(f"key{i} = 1\n" for i in range(4000)))).split("\n")
    assert len(lines) == 21
    assert "line 20: unknown key 'key19'" in lines[19]
    assert lines[20].endswith("and 3980 more faults")


def test_a_bad_value_of_any_length_is_told_in_short(written):
    message = fault(written("[server]\nport = [" + "1," * 20_000 + "]\n"))
    assert "line 2: server.port = [1, 1" in message
    assert len(message) < 1000


def test_the_line_of_a_key_is_found_behind_values_of_many_lines():
    text = "a = [\n" + "1,\n" * 50 + "]\n# x\u2028y\n[b]\nc = 1\n"
    assert line_of(text, ("a",)) == 1
    assert line_of(text, ("b", "c")) == 55
    assert line_of("a = [\n" + "1,\n" * 500 + "]\nb = 1\n", ("b",)) is None
    assert line_of("a = 1\n", ("b",)) is None


@pytest.mark.parametrize("key", ["server]\ndrain_seconds", "engine]\ngarbage_scale", "server]\nport"])
@pytest.mark.parametrize("number", ["inf", "nan"])
def test_infinity_and_nan_are_no_settings(written, key, number):
    assert "line 2" in fault(written(f"[{key} = {number}\n"))


def test_a_fault_is_one_line_whatever_the_path_is_named(tmp_path):
    path = tmp_path / "two\nlines\x1b[31m.toml"
    path.write_text("x = 1\n")
    message = fault(path)
    assert "\n" not in message
    assert "\x1b" not in message
    assert "two\\nlines" in message
