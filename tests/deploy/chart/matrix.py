"""Values that together reach every template: name -> (the chart's files, --set texts)."""

from __future__ import annotations

from tests.deploy.chart.rendering import Render, render

H200, H100, DEMO = ("values-h200x8.yaml",), ("values-h100x8.yaml",), ("values-cpu-demo.yaml",)
CLAIM = "weights.pvc.claimName=minimax-m3"
KEYS = 'gateway.auth.apiKeys:=["0123456789abcdef-first","0123456789abcdef-second"]'
SCRAPER = 'networkPolicy.metricsFrom:=[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]'
WATCHED = (
    SCRAPER,
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
            "redis.url=redis://redis.example.org:6380/0",
            "redis.cidr=10.1.2.3/32",
        ),
    ),
    "one-port": (
        DEMO,
        (
            KEYS,
            "gateway.operations.enabled=false",
            "gateway.tls.secretName=tls",
            *(w for w in WATCHED if w != SCRAPER),
            "monitoring.serviceMonitor.keySecret.name=scraper",
            'networkPolicy.gatewayFrom:=[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]',
        ),
    ),
    "everything": (
        H200,
        (
            CLAIM,
            KEYS,
            *WATCHED,
            "gateway.workers=4",
            "gateway.operations.debug=true",
            "gateway.tls.secretName=tls",
            "gateway.service.port=443",
            "gateway.config.admission.redis_fail_open=false",
            "redis.url=rediss://redis.example.org/0",
            "redis.passwordSecret.name=redis",
            "redis.caSecret.name=redis-ca",
            "gateway.ledger.enabled=true",
            "gateway.ledger.claimName=usage",
            'gateway.ledger.prices:={"MiniMax-M3":{"input":0.3,"cached_input":0.03,"output":1.2,"image":0.0000001}}',
            "gateway.tracing.endpoint=http://otel-collector.monitoring.svc:4318",
            "gateway.tracing.sampleRatio:=0.1",
            "gateway.tracing.headersSecret.name=otel",
            'networkPolicy.tracesTo:=[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]',
        ),
    ),
    "ledger-of-the-pod": (DEMO, ("gateway.ledger.enabled=true", "gateway.ledger.format=jsonl", "gateway.workers=2")),
    "open": (DEMO, ("networkPolicy.enabled=false", "tests.enabled=false", "serviceAccount.create=false")),
}  # fmt: skip


def rendered(name: str, *more: str, kube: str = "1.36.0") -> Render:
    files, sets = MATRIX[name]
    return render(*sets, *more, files=files, kube=kube)
