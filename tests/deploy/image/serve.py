"""Starts the gateway inside a root folder (chroot, user 10001) before a real local engine outside, and sends the helm
test's picture through both."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "engine" / "checkpoints" / "tiny"
TOKEN = "a-token-of-this-proof"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait(url: str, child: subprocess.Popen[bytes], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            sys.exit(f"{url}: the process ended with {child.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(0.3)
    sys.exit(f"{url} did not answer within {seconds:.0f} s")


def main(image: Path) -> int:
    engine_port, port = free_port(), free_port()
    env = {**os.environ, "CATALEJO_ENGINE_TOKEN": TOKEN, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    engine = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "engine", "--backend=local", f"--model={MODEL}", f"--port={engine_port}"],
        env=env,
    )
    model = next((image / "opt/catalejo/lib").glob("python3*/site-packages/engine/checkpoints/tiny"))
    (image / "etc/catalejo").mkdir(exist_ok=True)
    (image / "etc/catalejo/catalejo.yaml").write_text(
        f"host: 127.0.0.1\nport: {port}\nmodel_path: /{model.relative_to(image)}\nmodel_name: tiny\n"
        f"engines: [{{name: e, url: 'http://127.0.0.1:{engine_port}'}}]\n"
    )
    chroot = [
        shutil.which("chroot") or "/usr/sbin/chroot",
        "--userspec=10001:10001",
        str(image),
        "/opt/catalejo/bin/catalejo",
    ]
    clean = {"PATH": "/opt/catalejo/bin:/usr/bin:/bin", "HOME": "/tmp", "CATALEJO_ENGINE_TOKEN": TOKEN}
    children = [engine]
    try:
        gateway = subprocess.Popen([*chroot, "gateway", "--config", "/etc/catalejo/catalejo.yaml"], env=clean)
        children.append(gateway)
        wait(f"http://127.0.0.1:{port}/health", gateway)
        wait(f"http://127.0.0.1:{engine_port}/health", engine)
        wait(f"http://127.0.0.1:{port}/ready", gateway)
        script = ROOT / "deploy" / "helm" / "catalejo" / "files" / "send_picture.py"
        sent = subprocess.run([sys.executable, str(script)], env={"URL": f"http://127.0.0.1:{port}", "MODEL": "tiny"})
        command = [*chroot[:3], "/opt/catalejo/bin/catalejo", "--version"]
        named = subprocess.run(command, env=clean)
        video = "from preproc_rs import HAS_VIDEO; import sys; sys.exit(not HAS_VIDEO)"
        has_video = subprocess.run([*chroot[:3], "/opt/catalejo/bin/python", "-c", video], env=clean)
        hub = subprocess.run(
            [*chroot[:3], "/opt/catalejo/bin/hf", "download", "--help"], env=clean, capture_output=True
        )
        gateway.terminate()
        stopped = gateway.wait(30)
        results = {"picture": sent, "version": named, "video": has_video, "hf download": hub}
        failed = [k for k, v in results.items() if v.returncode]
        if failed or stopped not in (0, -15):
            sys.exit(f"failed: {failed}, gateway ended with {stopped}")
    finally:
        for child in children:
            child.kill()
            child.wait()
    print("ok: picture answered, videos can be decoded, `hf download` is there, SIGTERM ends it")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
