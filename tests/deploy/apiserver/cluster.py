"""A Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager. No nodes, so pods stay pending;
admission, defaulting, validation, RBAC and the workload controllers are real."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BINARIES = Path(os.environ.get("CATALEJO_APISERVER", "/nonexistent"))
TOOLS = Path(os.environ.get("CATALEJO_TOOLS", "/nonexistent"))

CRD_MODULES = {
    "sigs.k8s.io/gateway-api@v1.6.3": ["config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"],
    "sigs.k8s.io/gateway-api-inference-extension@v1.1.0": [
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
    ],
    "sigs.k8s.io/lws@v0.7.0": ["config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"],
    "github.com/kedacore/keda/v2@v2.18.1": ["config/crd/bases/keda.sh_scaledobjects.yaml"],
}
# Written by controller-gen from the operator's types (build.sh).
GENERATED_CRDS = ("servicemonitors", "podmonitors", "prometheusrules")


class CommandError(Exception):
    pass


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Cluster:
    folder: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        etcd, peer, self.port = free_port(), free_port(), free_port()
        token = secrets.token_hex(16)
        d = self.folder
        (d / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", d / "sa.key", "2048"], check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", d / "sa.key", "-pubout", "-out", d / "sa.pub"], check=True, capture_output=True
        )
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        (d / "kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "a", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "a"}}],
        }))  # fmt: skip
        self._spawn("server", f"--data-dir={d}/etcd", f"--listen-client-urls=http://127.0.0.1:{etcd}",
                    f"--advertise-client-urls=http://127.0.0.1:{etcd}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}", f"--initial-cluster=default=http://127.0.0.1:{peer}",
                    "--unsafe-no-fsync")  # fmt: skip
        self._spawn("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", f"--secure-port={self.port}",
                    "--bind-address=127.0.0.1", f"--cert-dir={d}/certs", f"--token-auth-file={d}/tokens.csv",
                    "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
                    "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={d}/sa.pub",
                    f"--service-account-signing-key-file={d}/sa.key")  # fmt: skip
        self._until(lambda: self.kubectl("get", "--raw", "/readyz") == "ok", "kube-apiserver", 240)
        self._spawn("kube-controller-manager", f"--kubeconfig={d}/kubeconfig", "--leader-elect=false", "--secure-port=0",
                    f"--service-account-private-key-file={d}/sa.key", "--use-service-account-credentials=false")  # fmt: skip

    def stop(self) -> None:
        for child in reversed(self.children):
            child.terminate()
        for child in reversed(self.children):
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.children.append(subprocess.Popen([BINARIES / name, *arguments], stdout=log, stderr=subprocess.STDOUT))

    def _until(self, test: Any, what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            dead = [c for c in self.children if c.poll() is not None]
            try:
                if test():
                    return
                last: Any = "not yet"
            except (CommandError, KeyError, json.JSONDecodeError) as e:
                last = e
            if dead or time.monotonic() > deadline:
                logs = {p.name: p.read_text(errors="replace")[-1500:] for p in self.folder.glob("*.log")}
                raise CommandError(f"{what}: {last}; {logs}")
            time.sleep(0.5)

    def wait(self, test: Any, what: str, seconds: float = 120) -> None:
        self._until(test, what, seconds)

    def run(self, tool: str, *arguments: str, stdin: str | None = None) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": str(self.folder)}
        done = subprocess.run([TOOLS / tool, *arguments], env=env, input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise CommandError(f"{tool} {' '.join(arguments[:4])}: {done.stderr.strip()[-3000:]}")
        return done.stdout + done.stderr if tool == "helm" else done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.run("kubectl", *arguments, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def helm(self, *arguments: str) -> str:
        return self.run("helm", *arguments)

    def install_crds(self) -> None:
        for module, files in CRD_MODULES.items():
            done = subprocess.run(
                ["go", "mod", "download", "-json", module], capture_output=True, text=True, cwd=self.folder
            )
            if done.returncode:
                raise CommandError(f"{module}: {done.stdout[-300:]}{done.stderr[-300:]}")
            for file in files:
                self.kubectl("apply", "--server-side", "-f", str(Path(json.loads(done.stdout)["Dir"]) / file))
        for plural in GENERATED_CRDS:
            file = BINARIES / "crds" / f"monitoring.coreos.com_{plural}.yaml"
            self.kubectl("apply", "--server-side", "-f", str(file))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")

    def namespace(self, name: str) -> str:
        assert re.fullmatch(r"[a-z0-9-]+", name)
        labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
        self.kubectl(
            "apply",
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}),
        )
        return name
