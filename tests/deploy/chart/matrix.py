"""Values that together reach every template: name -> (the chart's files, --set texts)."""

from __future__ import annotations

from tests.deploy.chart.rendering import Render, render

H200, H100, DEMO = ("values-h200x8.yaml",), ("values-h100x8.yaml",), ("values-cpu-demo.yaml",)
CLAIM = "weights.pvc.claimName=minimax-m3"
KEYS = 'gateway.auth.apiKeys:=["0123456789abcdef-first","0123456789abcdef-second"]'
WATCHED = (
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.podMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboards.enabled=true",
)

MATRIX: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cpu-demo": (DEMO, ()),
    "h200x8": (H200, (CLAIM,)),
    "h100x8": (H100, (CLAIM,)),
    "b200x8": (("values-b200x8.yaml",), (CLAIM,)),
    "three-engines": (H200, (CLAIM, "engine.replicas=3", *WATCHED)),
    "deployment": (H200, (CLAIM, "engine.kind=Deployment")),
    "host-path": ((), ("weights.source=hostPath", "weights.hostPath.path=/data/m3")),
    "oci-image": ((), ("weights.source=image", "weights.image.reference=models/m3:1", "weights.path=m3")),
    "download": ((), ("weights.source=download", "weights.download.tokenSecret.name=hub", "weights.download.endpoint=http://hub")),
    "own-checkpoint": (H200, (CLAIM, "gateway.checkpoint.image=models/m3-tokenizer:1")),
    "keys": (H200, (CLAIM, KEYS, "ingress.enabled=true", "ingress.hosts:=[\"m3.example.org\"]", "ingress.tlsSecret=tls")),
    "secrets": (
        H200,
        (
            CLAIM,
            "gateway.auth.apiKeysSecret.name=keys",
            "gateway.auth.tenantsSecret.name=tenants",
            "engineToken.existingSecret=token",
            "tests.apiKeySecret.name=test-key",
            "gateway.service.type=LoadBalancer",
        ),
    ),
    "gateway-api": (
        H200,
        (
            CLAIM,
            KEYS,
            "httpRoute.enabled=true",
            'httpRoute.parentRefs:=[{"name":"front"}]',
            'httpRoute.hostnames:=["m3.example.org"]',
            "httpRoute.toInferencePool=true",
            "inferencePool.enabled=true",
            "inferencePool.endpointPicker.name=picker",
        ),
    ),
    "hpa": (H200, (CLAIM, "gateway.autoscaling.kind=hpa")),
    "keda": (
        H200,
        (
            CLAIM,
            "gateway.autoscaling.kind=keda",
            "gateway.autoscaling.prometheusAddress=http://prometheus:9090",
            "gateway.autoscaling.timeToFirstTokenSeconds=5",
        ),
    ),
    "external-only": (DEMO, ("engine.enabled=false", 'engine.external:=[{"url":"http://engine.example.org:30000","name":"far"}]')),
    "found-by-dns": (H100, (CLAIM, "engine.replicas=2", "gateway.discovery.source=dns", "engine.kvEvents=true")),
    "found-by-slices": (
        H200,
        (
            CLAIM,
            "engine.kind=Deployment",
            "engine.replicas=2",
            "gateway.discovery.source=endpointslices",
            "networkPolicy.apiServer.cidr=10.0.0.1/32",
            'engine.external:=[{"url":"http://engine.example.org:30000","name":"far"}]',
        ),
    ),
    "load-test": (DEMO, ("loadTest.enabled=true", "loadTest.extraArgs:=[\"--seed=7\"]")),
    "closed": (
        H100,
        (
            CLAIM,
            *WATCHED,
            'networkPolicy.gatewayFrom:=[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]',
            'networkPolicy.metricsFrom:=[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]',
            "redis.cidr=10.1.2.3/32",
        ),
    ),
    "open": (DEMO, ("networkPolicy.enabled=false", "tests.enabled=false", "serviceAccount.create=false")),
}  # fmt: skip


def rendered(name: str, kube: str = "1.36.0") -> Render:
    files, sets = MATRIX[name]
    return render(*sets, files=files, kube=kube)
