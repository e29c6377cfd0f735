#!/usr/bin/env bash
# Builds etcd, kube-apiserver and kube-controller-manager through the Go module proxy, and the Prometheus operator's CRDs
# from its types; prints the folder.
# About 15 minutes on two free cores, once: the binaries stay in $CATALEJO_APISERVER_CACHE (default ~/.cache/catalejo).
set -euo pipefail
cd "$(dirname "$0")"
version=$(sed -nE 's/^\s*k8s.io\/kubernetes v([0-9.]+).*/\1/p' go.mod | head -1)
out=${CATALEJO_APISERVER_CACHE:-$HOME/.cache/catalejo}/apiserver-$version
minor=$(echo "$version" | cut -d. -f2)
if [ ! -x "$out/kube-apiserver" ] || [ ! -x "$out/kube-controller-manager" ] || [ ! -x "$out/server" ]; then
  mkdir -p "$out"
  v=k8s.io/component-base/version
  GOMEMLIMIT=5GiB GOFLAGS=-trimpath nice go build -p "${JOBS:-1}" \
    -ldflags "-s -w -X $v.gitVersion=v$version -X $v.gitMajor=1 -X $v.gitMinor=$minor" -o "$out/" \
    go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager >&2
fi
if [ ! -f "$out/crds/monitoring.coreos.com_servicemonitors.yaml" ]; then
  (cd crds && nice go tool controller-gen crd:crdVersions=v1 \
    paths=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1 "output:crd:dir=$out/crds") >&2
fi
echo "$out"
