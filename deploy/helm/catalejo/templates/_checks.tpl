{{/* Contradictions that stop the render. One sentence each: what is wrong, with the numbers, and what to change. */}}

{{- define "catalejo.checks" -}}
{{- $v := .Values -}}
{{- range $key := list "admission" "observability" -}}
  {{- $part := get (default dict $v.gateway.config) $key }}{{ if not (or (kindIs "map" $part) (not $part)) }}{{ fail (printf "gateway.config.%s is %v: make it a mapping." $key $part) }}{{ end -}}
{{- end -}}
{{- include "catalejo.checkWeights" . -}}
{{- include "catalejo.checkDrain" (dict "name" "gateway" "drain" $v.gateway.drain) -}}
{{- include "catalejo.checkRollout" (dict "name" "gateway" "part" $v.gateway) -}}
{{- include "catalejo.checkEngine" . -}}
{{- include "catalejo.checkScaling" . -}}
{{- include "catalejo.checkAccess" . -}}
{{- include "catalejo.checkOperations" . -}}
{{- include "catalejo.checkConnections" . -}}
{{- include "catalejo.checkConfig" . -}}
{{- end }}

{{- define "catalejo.checkWeights" -}}
{{- $w := .Values.weights -}}
{{- if not $w.source }}{{ fail "weights.source is not set: choose pvc, hostPath, image, download or shipped, so that pods find the checkpoint." }}{{ end -}}
{{- if and (eq $w.source "pvc") (not $w.pvc.claimName) }}{{ fail "weights.source is pvc: set weights.pvc.claimName to an existing claim with the checkpoint." }}{{ end -}}
{{- if and (eq $w.source "hostPath") (not (hasPrefix "/" $w.hostPath.path)) }}{{ fail (printf "weights.hostPath.path is %q: weights.source hostPath needs an absolute path." $w.hostPath.path) }}{{ end -}}
{{- if and (eq $w.source "image") (not $w.image.reference) }}{{ fail "weights.source is image: set weights.image.reference to the image that holds the checkpoint." }}{{ end -}}
{{- if eq $w.source "download" -}}
  {{- if not $w.download.repository }}{{ fail "weights.source is download: set weights.download.repository." }}{{ end -}}
  {{- if $w.path }}{{ fail "weights.path has no use with weights.source download, which puts each revision in a folder of its own: remove it." }}{{ end -}}
  {{- $pods := int .Values.gateway.replicas -}}
  {{- if .Values.engine.enabled }}{{ $pods = add $pods (mul .Values.engine.replicas .Values.engine.nodes) }}{{ end -}}
  {{- if and (gt (int $pods) 1) (not (has "ReadWriteMany" $w.download.accessModes)) }}{{ fail (printf "weights.download.accessModes is %v, but %d pods would mount the claim: add ReadWriteMany, or use another weights.source." $w.download.accessModes (int $pods)) }}{{ end -}}
{{- end -}}
{{- if and .Values.gateway.checkpoint.claimName .Values.gateway.checkpoint.image }}{{ fail "gateway.checkpoint has claimName and image: keep one." }}{{ end -}}
{{- end }}

{{- define "catalejo.checkDrain" -}}
{{- $need := add .drain.preStopSeconds .drain.drainSeconds -}}
{{- if le (int .drain.terminationGracePeriodSeconds) (int $need) }}{{ fail (printf "%s.drain.terminationGracePeriodSeconds is %d, but preStopSeconds + drainSeconds is %d: make it at least %d, or running answers are cut." .name (int .drain.terminationGracePeriodSeconds) (int $need) (int (add $need 5))) }}{{ end -}}
{{- end }}

{{- define "catalejo.checkRollout" -}}
{{- $zero := list "0" "0%" -}}
{{- $s := .part.updateStrategy -}}
{{- if and (has (toString $s.maxSurge) $zero) (has (toString $s.maxUnavailable) $zero) }}{{ fail (printf "%s.updateStrategy has maxSurge 0 and maxUnavailable 0, so no pod could ever be replaced: set one of them to 1." .name) }}{{ end -}}
{{- if and .part.podDisruptionBudget.enabled (has (toString .part.podDisruptionBudget.maxUnavailable) $zero) }}{{ fail (printf "%s.podDisruptionBudget.maxUnavailable is 0, so no node could ever be drained: set it to 1 or more, or disable the budget." .name) }}{{ end -}}
{{- end }}

{{- define "catalejo.checkEngine" -}}
{{- $e := .Values.engine -}}
{{- if not $e.enabled -}}
  {{- if ne .Values.gateway.discovery.source "static" }}{{ fail (printf "gateway.discovery.source is %s, but engine.enabled is false, so this release has no engines to find: set it to static and name engines in engine.external." .Values.gateway.discovery.source) }}{{ end -}}
  {{- if not $e.external }}{{ fail "engine.enabled is false and engine.external is empty, so gateways would have no engine: enable one or name one." }}{{ end -}}
{{- else -}}
  {{- include "catalejo.checkDrain" (dict "name" "engine" "drain" $e.drain) -}}
  {{- include "catalejo.checkRollout" (dict "name" "engine" "part" $e) -}}
  {{- if and (gt (int $e.nodes) 1) (ne $e.kind "LeaderWorkerSet") }}{{ fail (printf "engine.nodes is %d, but engine.kind is %s: several pods per engine need engine.kind LeaderWorkerSet." (int $e.nodes) $e.kind) }}{{ end -}}
  {{- if and (eq $e.kind "Deployment") (gt (int $e.replicas) 1) (eq .Values.gateway.discovery.source "static") }}{{ fail (printf "engine.replicas is %d with engine.kind Deployment, whose pods share one address: gateways must see each engine, so use StatefulSet, or gateway.discovery.source dns or endpointslices." (int $e.replicas)) }}{{ end -}}
  {{- if eq $e.backend "sglang" -}}
    {{- $gpus := mul $e.gpus $e.nodes -}}
    {{- $shards := mul $e.tensorParallel $e.pipelineParallel -}}
    {{- if ne (int $gpus) (int $shards) }}{{ fail (printf "engine.tensorParallel %d x engine.pipelineParallel %d = %d, but engine.gpus %d x engine.nodes %d = %d: make both equal." (int $e.tensorParallel) (int $e.pipelineParallel) (int $shards) (int $e.gpus) (int $e.nodes) (int $gpus)) }}{{ end -}}
  {{- else if $e.kvEvents }}{{ fail "engine.kvEvents is for engine.backend sglang; the local engine publishes none: set it to false." }}
  {{- else if gt (int $e.nodes) 1 }}{{ fail "engine.backend local runs in one pod: set engine.nodes to 1." }}
  {{- end -}}
  {{- range $flag := list "model" "model-path" "host" "port" "token" "api-key" "tp" "tp-size" "tensor-parallel-size" "pp-size" "pipeline-parallel-size" "nnodes" "node-rank" "dist-init-addr" "context-length" "served-model-name" "grace-s" "kv-events-config" }}
    {{- if hasKey $e.flags $flag }}{{ fail (printf "engine.flags.%s is set by the chart: use the value meant for it (engine.*, model.*, weights.*) and remove the flag." $flag) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.engineToken.value .Values.engineToken.existingSecret }}{{ fail "engineToken has value and existingSecret: keep one." }}{{ end -}}
{{- end }}

{{- define "catalejo.checkScaling" -}}
{{- $a := .Values.gateway.autoscaling -}}
{{- if ne $a.kind "none" -}}
  {{- if gt (int $a.minReplicas) (int $a.maxReplicas) }}{{ fail (printf "gateway.autoscaling.minReplicas %d is above maxReplicas %d: swap or change them." (int $a.minReplicas) (int $a.maxReplicas)) }}{{ end -}}
  {{- if and (eq $a.kind "keda") (not $a.prometheusAddress) }}{{ fail "gateway.autoscaling.kind is keda: set gateway.autoscaling.prometheusAddress, which it asks for queue depth and times." }}{{ end -}}
  {{- $any := or $a.cpuUtilization $a.inFlightPerReplica $a.queueDepthPerReplica -}}
  {{- if eq $a.kind "keda" }}{{ $any = or $any $a.overheadMilliseconds $a.timeToFirstTokenSeconds }}{{ end -}}
  {{- if not $any }}{{ fail "gateway.autoscaling has no target left: set at least one of cpuUtilization, inFlightPerReplica, queueDepthPerReplica." }}{{ end -}}
  {{- if and $a.cpuUtilization (not (dig "requests" "cpu" "" .Values.gateway.resources)) }}{{ fail "gateway.autoscaling.cpuUtilization is a share of the CPU request: set gateway.resources.requests.cpu, or cpuUtilization to null." }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "catalejo.checkAccess" -}}
{{- $v := .Values -}}
{{- $auth := $v.gateway.auth -}}
{{- $keys := include "catalejo.hasKeys" . -}}
{{- if and $auth.apiKeys $auth.apiKeysSecret.name }}{{ fail "gateway.auth has apiKeys and apiKeysSecret: keep one." }}{{ end -}}
{{- if and (not $keys) (not $auth.allowAnonymous) (or $v.ingress.enabled $v.httpRoute.enabled (ne $v.gateway.service.type "ClusterIP")) }}{{ fail "the gateway would be open to anybody outside the cluster: set gateway.auth.apiKeys, apiKeysSecret or tenantsSecret, or gateway.auth.allowAnonymous to true." }}{{ end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) }}{{ fail "ingress.enabled is true: set ingress.hosts." }}{{ end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) }}{{ fail "httpRoute.enabled is true: set httpRoute.parentRefs to the Gateway that it attaches to." }}{{ end -}}
{{- if and $v.httpRoute.toInferencePool (not $v.inferencePool.enabled) }}{{ fail "httpRoute.toInferencePool is true, but inferencePool.enabled is false: enable the pool." }}{{ end -}}
{{- if and $v.inferencePool.enabled (not $v.inferencePool.endpointPicker.name) }}{{ fail "inferencePool.enabled is true: set inferencePool.endpointPicker.name to the picker's Service." }}{{ end -}}
{{- if and $v.inferencePool.enabled (eq $v.inferencePool.target "engine") (not $v.engine.enabled) }}{{ fail "inferencePool.target is engine, but engine.enabled is false: the pool would be empty." }}{{ end -}}
{{- end }}

{{- define "catalejo.checkOperations" -}}
{{- $g := .Values.gateway -}}
{{- $m := .Values.monitoring.serviceMonitor -}}
{{- if $g.operations.enabled -}}
  {{- if eq (int $g.operations.port) 8000 }}{{ fail "gateway.operations.port is 8000, where the pods serve clients: choose another, e.g. 9090." }}{{ end -}}
  {{- if and $m.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) }}{{ fail "monitoring.serviceMonitor.enabled is true, but networkPolicy.metricsFrom is empty, so nobody reaches the operators' port: name Prometheus there, e.g. [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]." }}{{ end -}}
  {{- if $m.keySecret.name }}{{ fail "monitoring.serviceMonitor.keySecret has no use with gateway.operations.enabled, whose port asks for no key: remove it." }}{{ end -}}
{{- else -}}
  {{- if $g.operations.debug }}{{ fail "gateway.operations.debug is true, but gateway.operations.enabled is false, and only that port serves /debug: enable it." }}{{ end -}}
  {{- $open := eq (toString (get (default dict (get (default dict $g.config) "admission")) "protect_metrics")) "false" -}}
  {{- if and $m.enabled (include "catalejo.hasKeys" .) (not $open) (not $m.keySecret.name) }}{{ fail "monitoring.serviceMonitor.enabled is true, but /metrics of the main port needs a key: set monitoring.serviceMonitor.keySecret.name to a Secret with a key of scope metrics, or gateway.operations.enabled to true." }}{{ end -}}
{{- end -}}
{{- with get (default dict (get (default dict $g.resources) "limits")) "cpu" -}}
  {{- if lt (int (include "catalejo.milliCpu" .)) (int (mul 1000 $g.workers)) }}{{ if gt (int $g.workers) 1 }}{{ fail (printf "gateway.resources.limits.cpu is %v, but gateway.workers is %d, each about a core: raise the limit to %d or more, or lower workers." . (int $g.workers) (int $g.workers)) }}{{ end }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "catalejo.checkConnections" -}}
{{- $r := .Values.redis -}}
{{- if and (not $r.url) (or $r.passwordSecret.name $r.caSecret.name $r.cidr) }}{{ fail "redis has a Secret or a network, but redis.url is empty: name the Redis there." }}{{ end -}}
{{- if or (contains "@" $r.url) (contains "password=" $r.url) }}{{ fail "redis.url has a user or password, which would lie open in a ConfigMap: use redis.passwordSecret (and gateway.config.admission.redis_username)." }}{{ end -}}
{{- if and $r.caSecret.name (not (hasPrefix "rediss://" $r.url)) }}{{ fail "redis.caSecret is set, but redis.url is without TLS: let it begin with rediss://." }}{{ end -}}
{{- $g := .Values.gateway -}}
{{- if and $g.ledger.claimName (not $g.ledger.enabled) }}{{ fail "gateway.ledger.claimName is set, but gateway.ledger.enabled is false: enable it." }}{{ end -}}
{{- if and $g.tracing.headersSecret.name (not $g.tracing.endpoint) }}{{ fail "gateway.tracing.headersSecret is set, but gateway.tracing.endpoint is empty: name the collector." }}{{ end -}}
{{- if and .Values.networkPolicy.tracesTo (not $g.tracing.endpoint) }}{{ fail "networkPolicy.tracesTo is set, but gateway.tracing.endpoint is empty: name the collector." }}{{ end -}}
{{- if and .Values.loadTest.enabled $g.tls.secretName (not .Values.loadTest.url) }}{{ fail "loadTest.enabled with gateway.tls: set loadTest.url to a name that the certificate has." }}{{ end -}}
{{- end }}

{{- define "catalejo.checkConfig" -}}
{{- $instead := dict "host" "nothing (pods listen on every address)" "port" "gateway.service.port" "model_path" "weights.*" "model_name" "model.name" "model_aliases" "model.aliases" "context_length" "model.contextLength" "engines" "engine.replicas or engine.external" "discovery" "gateway.discovery" "engine_token" "engineToken" "shutdown_grace_s" "gateway.drain.drainSeconds" "workers" "gateway.workers" "operations" "gateway.operations" "tls" "gateway.tls" -}}
{{- range $key, $value := .Values.gateway.config -}}
  {{- if hasKey $instead $key }}{{ fail (printf "gateway.config.%s is written by the chart: use %s." $key (get $instead $key)) }}{{ end -}}
{{- end -}}
{{- $config := default dict .Values.gateway.config -}}
{{- $admission := default dict $config.admission -}}
{{- if or $admission.api_keys $admission.tenants }}{{ fail "gateway.config.admission has keys or tenants, which would lie open in a ConfigMap: put them into gateway.auth." }}{{ end -}}
{{- range $key, $value := dict "redis_url" "redis.url" "redis_password" "redis.passwordSecret" "redis_ca_file" "redis.caSecret" -}}
  {{- if hasKey $admission $key }}{{ fail (printf "gateway.config.admission.%s is written by the chart: use %s." $key $value) }}{{ end -}}
{{- end -}}
{{- $seen := default dict $config.observability -}}
{{- range $key := list "ledger" "tracing" -}}
  {{- $part := get $seen $key }}{{ if not (or (kindIs "map" $part) (not $part)) }}{{ fail (printf "gateway.config.observability.%s is %v: make it a mapping." $key $part) }}{{ end -}}
{{- end -}}
{{- if hasKey (default dict $seen.ledger) "path" }}{{ fail "gateway.config.observability.ledger.path is written by the chart: use gateway.ledger." }}{{ end -}}
{{- range $key, $value := dict "endpoint" "gateway.tracing.endpoint" "headers" "gateway.tracing.headersSecret" -}}
  {{- if hasKey (default dict $seen.tracing) $key }}{{ fail (printf "gateway.config.observability.tracing.%s is written by the chart: use %s." $key $value) }}{{ end -}}
{{- end -}}
{{- end }}
