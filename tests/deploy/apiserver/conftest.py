"""Needs a built kube-apiserver: `make test-apiserver` names its folder in CATALEJO_APISERVER."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.deploy.apiserver.cluster import Cluster

collect_ignore_glob = [] if os.environ.get("CATALEJO_APISERVER") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    it = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        it.start()
        it.install_crds()
        yield it
    finally:
        it.stop()
