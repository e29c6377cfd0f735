#!/bin/sh
# A virtual environment at /opt/catalejo with exactly the packages of the lock $1 (hashes demanded) and the wheel in $2.
set -eu
lock=$1
wheels=$2
python3 -m venv /opt/catalejo
/opt/catalejo/bin/pip install --quiet --no-cache-dir --no-compile --no-deps --require-hashes -r "$lock"
/opt/catalejo/bin/pip install --quiet --no-cache-dir --no-compile --no-deps "$wheels"/catalejo-*.whl
/opt/catalejo/bin/pip check
# The bill of materials of the Python side, readable by any scanner.
/opt/catalejo/bin/pip list --format=json >/opt/catalejo/packages.json
# The chart's `weights.source: shipped` looks here.
checkpoints=$(/opt/catalejo/bin/python -c 'import engine.checkpoints as c; print(c.__path__[0])')
if [ -f "$checkpoints/demo/model/config.json" ]; then ln -s "$checkpoints/demo/model" /opt/catalejo/checkpoint
else ln -s "$checkpoints/tiny" /opt/catalejo/checkpoint; fi
# numpy ships its own tests: 10 MB that nobody imports.
find /opt/catalejo/lib -type d -path "*/numpy/*" -name tests -prune -exec rm -rf {} +
# Byte code of what the gateway imports, since the root is read-only later; all of it would be 50 MB.
/opt/catalejo/bin/python -c 'import gateway.app, gateway.cli, gateway.commands.serve, gateway.media.video_worker
import loadtest.cli, loadtest.running, uvicorn.lifespan.on, uvicorn.loops.uvloop, uvicorn.protocols.http.httptools_impl'
# Nothing installs packages at run time.
/opt/catalejo/bin/pip uninstall --quiet --yes pip setuptools wheel 2>/dev/null || true
