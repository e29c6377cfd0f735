"""Values that contradict each other stop the render with a sentence that says what to change."""

# ruff: noqa: E501 - a table: one row a line

from __future__ import annotations

import pytest

from tests.deploy.chart.matrix import CLAIM, DEMO, H100, H200, KEYS
from tests.deploy.chart.rendering import RenderError, render

KEY_OF_SCRAPER = "monitoring.serviceMonitor.keySecret.name=scraper"
POOL = ("inferencePool.enabled=true", "inferencePool.endpointPicker.name=picker")

CONTRADICTIONS = {
    "no weights": ((), (), "weights.source is not set: choose pvc, hostPath, image, download or shipped"),
    "no claim": (H200, (), "set weights.pvc.claimName"),
    "relative host path": ((), ("weights.source=hostPath", "weights.hostPath.path=data"), 'is "data": weights.source hostPath needs an absolute path'),
    "no image": ((), ("weights.source=image",), "set weights.image.reference"),
    "no repository": ((), ("weights.source=download", "weights.download.repository="), "set weights.download.repository"),
    "path with download": ((), ("weights.source=download", "weights.path=a"), "weights.path has no use with weights.source download"),
    "one writer, many pods": ((), ("weights.source=download", 'weights.download.accessModes:=["ReadWriteOnce"]'), "3 pods would mount the claim: add ReadWriteMany"),
    "two checkpoints": (H200, (CLAIM, "gateway.checkpoint.claimName=a", "gateway.checkpoint.image=b"), "gateway.checkpoint has claimName and image: keep one"),
    "tensor parallel is not the GPUs": (H200, (CLAIM, "engine.tensorParallel=4"), "engine.tensorParallel 4 x engine.pipelineParallel 1 = 4, but engine.gpus 8 x engine.nodes 1 = 8"),
    "pipeline parallel is not the nodes": (H100, (CLAIM, "engine.pipelineParallel=1"), "engine.gpus 8 x engine.nodes 2 = 16: make both equal"),
    "gateway grace within drain": (DEMO, ("gateway.drain.terminationGracePeriodSeconds=17",), "gateway.drain.terminationGracePeriodSeconds is 17, but preStopSeconds + drainSeconds is 17: make it at least 22"),
    "engine grace within drain": (DEMO, ("engine.drain.drainSeconds=60",), "engine.drain.terminationGracePeriodSeconds is 30, but preStopSeconds + drainSeconds is 62"),
    "gateway cannot roll": (DEMO, ("gateway.updateStrategy.maxSurge=0",), "gateway.updateStrategy has maxSurge 0 and maxUnavailable 0"),
    "engine cannot roll": (DEMO, ("engine.updateStrategy.maxUnavailable=0%",), "engine.updateStrategy has maxSurge 0 and maxUnavailable 0"),
    "gateway cannot be drained": (DEMO, ("gateway.podDisruptionBudget.maxUnavailable=0",), "gateway.podDisruptionBudget.maxUnavailable is 0, so no node could ever be drained"),
    "engine cannot be drained": (DEMO, ("engine.podDisruptionBudget.maxUnavailable=0",), "engine.podDisruptionBudget.maxUnavailable is 0"),
    "no engine": (DEMO, ("engine.enabled=false",), "engine.enabled is false and engine.external is empty"),
    "nodes without groups": (H200, (CLAIM, "engine.nodes=2", "engine.pipelineParallel=2"), "several pods per engine need engine.kind LeaderWorkerSet"),
    "replicas behind one address": (H200, (CLAIM, "engine.kind=Deployment", "engine.replicas=2"), "gateways must see each engine, so use StatefulSet, or gateway.discovery.source dns or endpointslices"),
    "finding engines of nobody": (DEMO, ("engine.enabled=false", "gateway.discovery.source=dns", 'engine.external:=[{"url":"http://e"}]'), "gateway.discovery.source is dns, but engine.enabled is false"),
    "discovery in the configuration": (DEMO, ("gateway.config.discovery.source=dns",), "use gateway.discovery"),
    "local engine on two nodes": (DEMO, ("engine.nodes=2", "engine.kind=LeaderWorkerSet"), "engine.backend local runs in one pod"),
    "events of the local engine": (DEMO, ("engine.kvEvents=true",), "the local engine publishes none"),
    "a flag of the chart": (H200, (CLAIM, "engine.flags.tp-size=4"), "engine.flags.tp-size is set by the chart"),
    "two tokens": (DEMO, ("engineToken.value=0123456789abcdef", "engineToken.existingSecret=t"), "engineToken has value and existingSecret: keep one"),
    "scaling backwards": (DEMO, ("gateway.autoscaling.kind=hpa", "gateway.autoscaling.minReplicas=11"), "gateway.autoscaling.minReplicas 11 is above maxReplicas 10"),
    "keda without Prometheus": (DEMO, ("gateway.autoscaling.kind=keda",), "set gateway.autoscaling.prometheusAddress"),
    "scaling on nothing": (DEMO, ("gateway.autoscaling.kind=hpa", "gateway.autoscaling.cpuUtilization=null", "gateway.autoscaling.inFlightPerReplica=null", "gateway.autoscaling.queueDepthPerReplica=null"), "gateway.autoscaling has no target left"),
    "share of no request": (DEMO, ("gateway.autoscaling.kind=hpa", "gateway.resources.requests=null"), "gateway.autoscaling.cpuUtilization is a share of the CPU request"),
    "open ingress": (DEMO, ("ingress.enabled=true", 'ingress.hosts:=["a.example.org"]'), "the gateway would be open to anybody outside the cluster"),
    "open load balancer": (DEMO, ("gateway.service.type=LoadBalancer",), "the gateway would be open to anybody outside the cluster"),
    "two sources of keys": (DEMO, (KEYS, "gateway.auth.apiKeysSecret.name=a"), "gateway.auth has apiKeys and apiKeysSecret: keep one"),
    "ingress for nobody": (DEMO, (KEYS, "ingress.enabled=true"), "set ingress.hosts"),
    "route from nowhere": (DEMO, (KEYS, "httpRoute.enabled=true"), "set httpRoute.parentRefs"),
    "route to no pool": (DEMO, ("httpRoute.toInferencePool=true",), "inferencePool.enabled is false: enable the pool"),
    "pool without picker": (DEMO, ("inferencePool.enabled=true",), "set inferencePool.endpointPicker.name"),
    "pool of no engine": (DEMO, (*POOL, "inferencePool.target=engine", "engine.enabled=false", 'engine.external:=[{"url":"http://e"}]'), "the pool would be empty"),
    "configuration of the chart": (DEMO, ("gateway.config.model_path=/x",), "gateway.config.model_path is written by the chart: use weights.*"),
    "grace in the configuration": (DEMO, ("gateway.config.shutdown_grace_s=1",), "use gateway.drain.drainSeconds"),
    "keys in a ConfigMap": (DEMO, ('gateway.config.admission.api_keys:=["0123456789abcdef"]',), "would lie open in a ConfigMap: put them into gateway.auth"),
    "operators and clients on one port": (DEMO, ("gateway.operations.port=8000",), "gateway.operations.port is 8000, where the pods serve clients"),
    "a scraper that nobody admits": (DEMO, ("monitoring.serviceMonitor.enabled=true",), "networkPolicy.metricsFrom is empty, so nobody reaches the operators' port"),
    "a key for a port without keys": (DEMO, ("monitoring.serviceMonitor.keySecret.name=k",), "monitoring.serviceMonitor.keySecret has no use"),
    "a scraper without a key": (DEMO, (KEYS, "gateway.operations.enabled=false", "monitoring.serviceMonitor.enabled=true"), "set monitoring.serviceMonitor.keySecret.name to a Secret with a key of scope metrics"),
    "debug on no port": (DEMO, ("gateway.operations.enabled=false", "gateway.operations.debug=true"), "only that port serves /debug"),
    "more processes than cores": (DEMO, ("gateway.workers=4", "gateway.resources.limits.cpu=3500m"), "gateway.resources.limits.cpu is 3500m, but gateway.workers is 4, each about a core: raise the limit to 4 or more"),
    "a port that no host has": (DEMO, ("redis.url=redis://redis:70000/0",), 'the port 70000 of "redis://redis:70000/0" is outside 1 to 65535'),
    "a section that is none": (DEMO, ("gateway.config.observability=x",), "gateway.config.observability is x: make it a mapping"),
    "a part that is none": (DEMO, ("gateway.config.observability.tracing=x",), "gateway.config.observability.tracing is x: make it a mapping"),
    "password of no Redis": (DEMO, ("redis.passwordSecret.name=p",), "redis.url is empty: name the Redis there"),
    "network of no Redis": (DEMO, ("redis.cidr=10.0.0.0/8",), "redis.url is empty: name the Redis there"),
    "password in the URL": (DEMO, ("redis.url=redis://:secret@redis/0",), "redis.url has a user or password, which would lie open in a ConfigMap"),
    "password behind the URL": (DEMO, ("redis.url=redis://redis/0?password=secret",), "which would lie open in a ConfigMap"),
    "authority without TLS": (DEMO, ("redis.url=redis://redis/0", "redis.caSecret.name=ca"), "redis.url is without TLS: let it begin with rediss://"),
    "Redis in the configuration": (DEMO, ("gateway.config.admission.redis_url=redis://redis",), "gateway.config.admission.redis_url is written by the chart: use redis.url"),
    "ledger in the configuration": (DEMO, ("gateway.config.observability.ledger.path=/tmp/u",), "use gateway.ledger"),
    "claim of no ledger": (DEMO, ("gateway.ledger.claimName=usage",), "gateway.ledger.enabled is false: enable it"),
    "headers for no collector": (DEMO, ("gateway.tracing.headersSecret.name=otel",), "gateway.tracing.endpoint is empty: name the collector"),
    "way to no collector": (DEMO, ('networkPolicy.tracesTo:=[{"podSelector":{}}]',), "gateway.tracing.endpoint is empty: name the collector"),
    "headers in a ConfigMap": (DEMO, ("gateway.config.observability.tracing.headers.a=b",), "use gateway.tracing.headersSecret"),
    "processes in the configuration": (DEMO, ("gateway.config.workers=2",), "use gateway.workers"),
    "ports in the configuration": (DEMO, ("gateway.config.operations.port=1",), "use gateway.operations"),
    "certificate in the configuration": (DEMO, ("gateway.config.tls.key=/k",), "use gateway.tls"),
    "load on a name that is not certified": (DEMO, ("loadTest.enabled=true", "gateway.tls.secretName=tls"), "set loadTest.url to a name that the certificate has"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradiction_stops_the_render_with_a_sentence(name: str) -> None:
    files, sets, sentence = CONTRADICTIONS[name]
    with pytest.raises(RenderError) as refused:
        render(*sets, files=files)
    assert sentence in str(refused.value)


SCHEMA = {
    "unknown key": ("gateway.replica=3", "'replica' not allowed"),
    "unknown key at the top": ("gatway.replicas=3", "'gatway' not allowed"),
    "wrong kind": ("engine.kind=DaemonSet", "must be one of"),
    "wrong type": ("gateway.replicas=many", "want integer"),
    "short digest": ("images.gateway.digest=sha256:abc", "does not match pattern"),
    "short token": ("engineToken.value=secret", "does not match pattern"),
    "no process": ("gateway.workers=0", "minimum"),
    "privileged port": ("gateway.operations.port=80", "minimum"),
    "old TLS": ("gateway.tls.minimumVersion=1.1", "must be one of"),
    "Redis by another protocol": ("redis.url=http://redis", "does not match pattern"),
    "a port that is no number": ("redis.url=redis://redis:port/0", "does not match pattern"),
    "collector without scheme": ("gateway.tracing.endpoint=otel:4318", "does not match pattern"),
    "more than all traces": ("gateway.tracing.sampleRatio=2", "maximum"),
    "price of nothing": ('gateway.ledger.prices:={"m":{"inputs":1}}', "'inputs' not allowed"),
    "negative price": ('gateway.ledger.prices:={"m":{"input":-1}}', "minimum"),
    "negative replicas": ("gateway.replicas=-1", "minimum"),
}


@pytest.mark.parametrize("name", SCHEMA)
def test_the_schema_refuses(name: str) -> None:
    text, reason = SCHEMA[name]
    with pytest.raises(RenderError, match=reason):
        render(text)


def test_what_is_no_contradiction_renders() -> None:
    render("gateway.workers=4", "gateway.resources.limits.cpu=4")
    render("gateway.workers=4", "gateway.resources.limits.cpu:=4.0")
    render("gateway.resources.limits.cpu=500m")  # one process may have less than a core
    monitor = ("gateway.operations.enabled=false", "monitoring.serviceMonitor.enabled=true")
    render('gateway.resources:={"requests":{"cpu":null},"limits":null}', "gateway.workers=2")
    render(
        'gateway.config:={"observability":{"ledger":null,"tracing":null},"admission":null}',
        *monitor,
        KEYS,
        KEY_OF_SCRAPER,
    )
    render("gateway.config=null", "gateway.resources=null")
    render("redis.url=redis://[fd00::1]:6379/0")
    render(*monitor)  # without keys /metrics is open
    render(*monitor, KEYS, "gateway.config.admission.protect_metrics=false")
    render("monitoring.serviceMonitor.enabled=true", "networkPolicy.enabled=false")


def test_a_parent_charts_global_values_are_welcome() -> None:
    render("global.storageClass=fast", 'global.other:={"a":1}')
