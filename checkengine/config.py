"""The configuration: checkengine.toml and the environment, composed of the folders' own settings."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from checkengine.dashboards.settings import TracesSettings, WebhookSettings
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.settings import EngineSettings, ServerSettings
from checkengine.guards.errors import UserError, one_line
from checkengine.guards.settings import BrakeSettings, GuardsSettings, LogitsSettings
from checkengine.replay.settings import (
    AuditSettings,
    CaptureSettings,
    CatalogSettings,
    RecorderSettings,
    SpoolSettings,
)
from checkengine.toml_lines import exists, line_of

PREFIX = "CHECKENGINE_"
SEPARATOR = "__"
FILE_VARIABLE = "CHECKENGINE_CONFIG"
DEFAULT_FILE = "checkengine.toml"


MOST_BYTES = 1 << 16
"""A larger file is no configuration; a device that never ends is one such."""
MOST_LETTERS = 200
"""Of a bad value, told in its fault."""
MOST_FAULTS = 20
"""Told of one configuration."""


class ConfigurationError(UserError):
    """The configuration cannot be used; a line for each fault names file, line and key, and says what is allowed."""

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(one_line(fault) for fault in self.faults)


class Settings(BaseSettings):
    """Everything that can be configured: one field a section. A folder adds a section by adding its model here.

    A variable `CHECKENGINE_<SECTION>__<KEY>` outweighs the file, for example CHECKENGINE_GUARDS__REPETITION__ACTION.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=SEPARATOR, extra="forbid", frozen=True, validate_default=True
    )

    guards: GuardsSettings = Field(default_factory=GuardsSettings)
    brake: BrakeSettings = Field(default_factory=BrakeSettings)
    logits: LogitsSettings = Field(default_factory=LogitsSettings)
    recorder: RecorderSettings = Field(default_factory=RecorderSettings)
    capture: CaptureSettings = Field(default_factory=CaptureSettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    spool: SpoolSettings = Field(default_factory=SpoolSettings)
    catalog: CatalogSettings = Field(default_factory=CatalogSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    proxy: ProxySettings = Field(default_factory=ProxySettings)
    traces: TracesSettings = Field(default_factory=TracesSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    dashboard: DashboardSettings = Field(default_factory=DashboardSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What `load_settings` merged is all there is: `Settings()` itself reads neither file nor environment."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the values came from, to name the place of a bad one."""

    file: str
    text: str
    from_file: Mapping[str, Any]
    from_environment: Mapping[str, Any]

    def place(self, path: Sequence[str | int]) -> str:
        if exists(self.from_environment, path):
            name = PREFIX + SEPARATOR.join(str(step) for step in path).upper()
            return f"environment variable {name}"
        line = line_of(self.text, path)
        return f"{self.file}, line {line}" if line else self.file


def load_settings(path: Path | str | None = None) -> Settings:
    """Read the file (`path`, else $CHECKENGINE_CONFIG, else ./checkengine.toml where there is one) and the environment.

    Raises ConfigurationError with one line for each fault.
    """
    file, text = _read(path)
    try:
        from_file = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Besides TOMLDecodeError: numbers of thousands of digits, and nesting without end.
        raise ConfigurationError(f"{file}: not valid TOML: {error}") from error
    sources = _Sources(file, text, from_file, _environment())
    try:
        return Settings(**merged(sources.from_file, sources.from_environment))
    except ValidationError as error:
        faults = error.errors()
        told = [_explain(fault, sources) for fault in faults[:MOST_FAULTS]]
        more = [f"{file}: and {len(faults) - MOST_FAULTS} more faults"] if len(faults) > MOST_FAULTS else []
        raise ConfigurationError(*told, *more) from error


def as_toml(settings: Settings) -> str:
    """All settings as TOML, defaults included; what has no value is left out."""
    return "\n".join(_table((), settings.model_dump(mode="json"))).strip() + "\n"


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; any other value of `above` outweighs that of `below`."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _read(path: Path | str | None) -> tuple[str, str]:
    named = path or os.environ.get(FILE_VARIABLE)
    if not named and not Path(DEFAULT_FILE).is_file():
        return DEFAULT_FILE, ""
    file = Path(named or DEFAULT_FILE)
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise ConfigurationError(f"{file}: more than {MOST_BYTES} bytes: not a configuration")
    try:
        # Some editors write a byte order mark.
        return str(file), data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from error


def _environment() -> dict[str, Any]:
    _refuse_unknown_variables()
    try:
        return EnvSettingsSource(Settings)()
    except (SettingsError, RecursionError) as error:
        raise ConfigurationError(f"environment: {error}") from error


def _refuse_unknown_variables() -> None:
    """pydantic-settings passes over variables of sections that do not exist; a typo must not pass."""
    for name in os.environ:
        section, separator, _ = name.removeprefix(PREFIX).partition(SEPARATOR)
        if name.startswith(PREFIX) and separator and section.lower() not in Settings.model_fields:
            raise ConfigurationError(
                f"environment variable {name}: unknown section {section.lower()!r}"
                + _allowed(section.lower(), Settings.model_fields)
            )


def _explain(fault: ErrorDetails, sources: _Sources) -> str:
    path = fault["loc"]
    key = ".".join(str(step) for step in path)
    if fault["type"] == "extra_forbidden":
        owner = ".".join(str(step) for step in path[:-1])
        where = f" in [{owner}]" if owner else ""
        problem = f"unknown key {str(path[-1])!r}{where}" + _allowed(str(path[-1]), _fields_at(path[:-1]))
    elif fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        problem = f"{key} must be a table, [{key}], not {fault['input']!r}"
    else:
        value = json.dumps(fault["input"], default=str)
        problem = f"{key} = {value[:MOST_LETTERS]}{'…' * (len(value) > MOST_LETTERS)}: {fault['msg']}"
    return f"{sources.place(path)}: {problem}"


def _allowed(name: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(fields)})"


def _fields_at(path: Sequence[str | int]) -> Mapping[str, Any]:
    model: type[BaseModel] = Settings
    for step in path:
        annotation = model.model_fields[str(step)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return {}
        model = annotation
    return model.model_fields


def _table(path: tuple[str, ...], values: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in values.items() if value is not None and not isinstance(value, dict)}
    lines = ["", f"[{'.'.join(path)}]"] if path and plain else []
    # JSON's strings, numbers, booleans and lists of these are TOML as well.
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += _table((*path, key), value)
    return lines
