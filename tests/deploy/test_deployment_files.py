"""What deploy/ says is what checkengine, Docker, Kubernetes and Prometheus take. Nothing here starts a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from checkengine.benchmarks.debian import program
from checkengine.commands.main import COMMANDS, load_command
from checkengine.config import load_settings
from checkengine.dashboards.web.people import Role
from checkengine.dashboards.web.tokens import TokenFile

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = [DEPLOY / "kubernetes" / f"{name}.yaml" for name in ("namespace", "config", "server", "dashboard")]


def resources() -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def pods() -> Iterator[dict[str, Any]]:
    for each in resources():
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def options_of(command: str) -> set[str]:
    return {option for parameter in load_command(command).params for option in parameter.opts}


def check_command(words: list[str]) -> None:
    name, *arguments = words
    assert name in COMMANDS
    assert {word for word in arguments if word.startswith("--")} <= options_of(name)


def test_the_compose_file_is_valid_by_dockers_schema(compose: dict[str, Any]) -> None:
    folder = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(folder.read_text()))


def test_every_file_that_compose_mounts_is_there_or_is_made_by_make_secrets(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), (name, source)
        for secret in service.get("secrets", []):
            assert secret in compose["secrets"]


def test_every_service_of_ours_starts_with_a_command_that_there_is(compose: dict[str, Any]) -> None:
    ours = [service for service in compose["services"].values() if service["image"] == "checkengine"]
    assert len(ours) == 2
    for service in ours:
        check_command(service["command"])
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_no_port_is_open_to_the_network_and_no_image_is_the_latest(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["image"] == "checkengine" or re.fullmatch(r"[a-z/]+:v?\d+(\.\d+)*", service["image"])


def test_the_configuration_of_the_containers_loads_with_their_environment(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in ("server", "dashboard"):
        with monkeypatch.context() as patch:
            for name, value in compose["services"][service]["environment"].items():
                patch.setenv(name, value)
            settings = load_settings(DEPLOY / "config" / "checkengine.toml")
            assert settings.catalog.url.startswith("postgresql+psycopg://")


def test_the_configuration_of_the_pods_loads_with_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = [each for each in resources() if each["kind"] == "ConfigMap"]
    (tmp_path / "checkengine.toml").write_text(config["data"]["checkengine.toml"])
    for pod in pods():
        with monkeypatch.context() as patch:
            for variable in pod["containers"][0]["env"]:
                patch.setenv(variable["name"], variable.get("value", "x"))
            assert load_settings(tmp_path / "checkengine.toml").spool.directory.is_absolute()


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_every_manifest_is_valid_by_kubernetes_own_schema_and_has_no_unknown_key(version: str) -> None:
    for each in resources():
        kubernetes_validate.validate(each, version, strict=True)


def test_a_manifest_with_an_unknown_key_is_noticed() -> None:
    (config, *_) = [each for each in resources() if each["kind"] == "ConfigMap"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**config, "dta": {}}, "1.29", strict=True)


def test_kustomize_names_every_manifest() -> None:
    named = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in MANIFESTS)


def test_pods_run_without_root_privileges_or_a_writable_root() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            check_command(container["args"])


def test_probes_ask_for_paths_that_the_server_has() -> None:
    source = (ROOT / "engine_shim" / "engine" / "server.py").read_text()
    asked = set(re.findall(r"path: (/healthz\S*),", (DEPLOY / "kubernetes" / "server.yaml").read_text()))
    asked |= set(re.findall(r":8000(/\S*?)'", (DEPLOY / "compose.yaml").read_text()))
    assert asked == {"/healthz/ready", "/healthz/live"}
    assert all(f'@app.get("{path}")' in source for path in asked)


def test_services_lead_to_the_pods_that_there_are() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in resources() if "template" in each.get("spec", {})
    ]
    for service in (each for each in resources() if each["kind"] == "Service"):
        assert any(service["spec"]["selector"].items() <= pod.items() for pod in labels)


def test_prometheus_and_alertmanager_take_their_configurations(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "prometheus" / "prometheus.yaml", tmp_path)
    shutil.copy(ROOT / "dashboards" / "rules" / "checkengine.rules.yaml", tmp_path)
    promtool, amtool = program("promtool", "prometheus"), program("amtool", "prometheus-alertmanager")
    for command in (
        [promtool, "check", "config", tmp_path / "prometheus.yaml"],
        [amtool, "check-config", DEPLOY / "prometheus" / "alertmanager.yaml"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_its_dashboards_where_compose_puts_them(compose: dict[str, Any]) -> None:
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/checkengine.yaml").read_text())["providers"][0]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounted
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"


def test_the_dockerfile_copies_what_is_there_and_installs_extras_that_there_are() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    extras = re.search(r"^ARG EXTRAS=(\S+)", text, re.MULTILINE)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert re.search(r"^USER 10001", text, re.MULTILINE)


def test_make_secrets_makes_files_for_few_eyes_and_a_token_that_signs_in(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "make-secrets", tmp_path)
    done = subprocess.run([tmp_path / "make-secrets"], capture_output=True, text=True, check=True)
    token = done.stdout.split()[-1]
    secrets = tmp_path / "secrets"
    assert {path.name: path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {
        "postgres.env": 0o600,
        "dashboard-tokens": 0o640,
    }
    holder = TokenFile(secrets / "dashboard-tokens").holder(token)
    assert holder is not None
    assert (holder.name, holder.role) == ("admin", Role.ADMIN)
    passwords = [line.split("=")[1] for line in (secrets / "postgres.env").read_text().splitlines()]
    assert len(passwords) == 2
    assert len(set(passwords)) == 1
    assert len(passwords[0]) == 48
    assert (tmp_path / ".env").read_text() == f"CHECKENGINE_GROUP={os.getgid()}\n"
    again = subprocess.run([tmp_path / "make-secrets"], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "there already" in again.stderr
    assert TokenFile(secrets / "dashboard-tokens").holder(token) is not None
