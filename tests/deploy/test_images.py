"""The image recipes: small, not root, pinned, and the lock is the project's own. tests/deploy/image/prove.sh runs the steps."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.metric_names import CHART, ROOT

DOCKER = ROOT / "deploy" / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))
PIN = re.compile(r"^([a-z0-9.-]+)==([^\s;\\]+)", re.M)


def _pins(path: Path) -> dict[str, str]:
    return dict(PIN.findall(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_bases_are_variables_and_the_user_is_a_number(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?", text, re.M)
    names = {name for _, name in stages}
    assert [base for base, _ in stages if not base.startswith("${") and base not in names] == []
    assert re.findall(r"^USER (\S+)", text, re.M)[-1] == "10001:10001"
    assert str(yaml.safe_load((CHART / "values.yaml").read_text())["security"]["pod"]["runAsUser"]) == "10001"
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        assert all((ROOT / s).exists() for s in source.split()), source


def test_the_gateways_lock_has_hashes_no_torch_and_the_projects_versions() -> None:
    lock = (DOCKER / "gateway.lock").read_text(encoding="utf-8")
    pins = _pins(DOCKER / "gateway.lock")
    assert lock.count("--hash=sha256:") >= len(pins) >= 30
    assert not {n for n in pins if n.startswith(("torch", "nvidia", "triton", "transformers", "cuda"))}
    app = _pins(ROOT / "requirements" / "app.txt")
    assert {n: v for n, v in pins.items() if n in app and app[n] != v} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {
        re.split(r"[\[<>=! ]", d)[0] for d in (*project["dependencies"], *project["optional-dependencies"]["loadtest"])
    }
    assert direct <= set(pins)


def test_the_build_packages_are_those_of_the_checkouts_setup() -> None:
    setup = (ROOT / "deploy" / "build" / "setup.sh").read_text(encoding="utf-8")
    listed = re.search(r"APT_PACKAGES=\(([^)]*)\)", setup)
    assert listed
    step = (DOCKER / "steps" / "build-packages.sh").read_text(encoding="utf-8")
    assert [p for p in listed[1].split() if p not in step] == []


def test_compose_is_hardened_and_closed() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["user"] == "10001:10001"
    assert services["gateway"]["ports"] == ["127.0.0.1:8000:8000"]
    assert services["engine"]["networks"] == ["back"]
    overlay = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text(encoding="utf-8"))["services"]
    assert set(overlay) <= set(services)


def test_a_release_without_digests_is_refused() -> None:
    done = subprocess.run(
        ["bash", str(DOCKER / "build.sh")],
        env={"RELEASE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "needs BASE_IMAGE with a digest" in done.stderr


@pytest.mark.parametrize("script", sorted(DOCKER.rglob("*.sh")), ids=lambda p: p.name)
def test_scripts_parse(script: Path) -> None:
    shell = "bash" if "bash" in script.read_text(encoding="utf-8").splitlines()[0] else "sh"
    assert shutil.which(shell)
    assert subprocess.run([shell, "-n", str(script)], capture_output=True).returncode == 0
