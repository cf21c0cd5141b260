"""The examples in deploy/proxy are what Docker, Kubernetes, systemd and checkengine take. Nothing is started."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from checkengine.commands.main import load_command
from checkengine.config import PREFIX, SEPARATOR, Settings

PROXY = Path(__file__).parents[2] / "deploy" / "proxy"


def check_command(words: list[str]) -> None:
    assert words[0] == "proxy"
    options = {option for parameter in load_command("proxy").params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def check_variable(name: str) -> None:
    """A variable of checkengine names a setting."""
    if name.startswith(PREFIX):
        section, key = name.removeprefix(PREFIX).lower().split(SEPARATOR)
        assert key in type(getattr(Settings(), section)).model_fields


def test_the_compose_file_is_valid_and_starts_the_proxy() -> None:
    compose: dict[str, Any] = yaml.safe_load((PROXY / "compose.yaml").read_text())
    folder = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(folder.read_text()))
    service = compose["services"]["proxy"]
    check_command(service["command"])
    for name in service["environment"]:
        check_variable(name)
    assert "ports" not in compose["services"]["engine"]


def test_the_sidecar_is_valid_and_keeps_the_engine_to_itself() -> None:
    deployment, service = yaml.safe_load_all((PROXY / "kubernetes-sidecar.yaml").read_text())
    for resource in (deployment, service):
        kubernetes_validate.validate(resource, "1.31", strict=True)
    pod = deployment["spec"]["template"]["spec"]
    sidecar, engine = pod["initContainers"][0], pod["containers"][0]
    assert sidecar["restartPolicy"] == "Always"
    check_command(sidecar["args"])
    for variable in sidecar["env"]:
        check_variable(variable["name"])
    assert engine["args"][engine["args"].index("--host") + 1] == "127.0.0.1"
    assert service["spec"]["ports"][0]["targetPort"] == "api"


def test_the_unit_starts_the_proxy_and_waits_longer_than_it_drains() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((PROXY / "checkengine-proxy.service").read_text())
    check_command(shlex.split(unit["Service"]["ExecStart"])[1:])
    for line in re.findall(r"^Environment=(.*)$", (PROXY / "checkengine-proxy.service").read_text(), re.MULTILINE):
        check_variable(line.partition("=")[0])
    assert float(unit["Service"]["TimeoutStopSec"]) > Settings().proxy.drain_seconds
