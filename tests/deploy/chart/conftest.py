"""These tests need helm: `make test-deploy` brings it and names its folder in CATALEJO_TOOLS. Without it they are not
collected, and tests/deploy/test_not_here.py says so once."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("CATALEJO_TOOLS") else ["test_*.py"]
