{{/* The engine's pod, the same in a StatefulSet, a Deployment and a LeaderWorkerSet. */}}

{{/* dict "name" "x" "value" y -> one argument; values may hold spaces, so each is quoted JSON. */}}
{{- define "catalejo.flag" -}}
{{- if kindIs "bool" .value }}{{ if .value }}
- {{ printf "--%s" .name | quote }}{{ end }}
{{- else if not (kindIs "invalid" .value) }}
{{- $text := toString .value }}
{{- if kindIs "float64" .value }}{{ if eq .value (floor .value) }}{{ $text = printf "%d" (int64 .value) }}{{ end }}{{ end }}
- {{ printf "--%s=%s" .name $text | quote }}
{{- end }}
{{- end }}

{{- define "catalejo.engineArgs" -}}
{{- $e := .Values.engine -}}
- engine
- --backend={{ $e.backend }}
- --model={{ include "catalejo.modelPath" (dict "root" . "for" "engine") }}
- --host=0.0.0.0
- --port=30000
{{- with .Values.model.contextLength }}
- --context-length={{ int . }}
{{- end }}
{{- if eq $e.backend "sglang" }}
- --tp-size={{ $e.tensorParallel }}
{{- if gt (int $e.pipelineParallel) 1 }}
- --pp-size={{ $e.pipelineParallel }}
{{- end }}
{{- if gt (int $e.nodes) 1 }}
- --nnodes={{ $e.nodes }}
- --node-rank=$(LWS_WORKER_INDEX)
- --dist-init-addr=$(LWS_LEADER_ADDRESS):20000
{{- end }}
{{- if $e.kvEvents }}
- {{ printf "--kv-events-config=%s" (toJson (dict "publisher" "zmq" "endpoint" "tcp://*:5557" "replay_endpoint" "tcp://*:5657")) | quote }}
{{- end }}
{{- else }}
- --grace-s={{ $e.drain.drainSeconds }}
{{- end }}
{{- range $name, $value := $e.flags }}
{{- include "catalejo.flag" (dict "name" $name "value" $value) }}
{{- end }}
{{- range $e.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Kernels compiled at run time and downloads of the libraries land in /cache: the root is read-only and the user has no home. */}}
{{- define "catalejo.engineEnv" -}}
{{ include "catalejo.tokenEnv" . }}
{{- $folders := dict "HOME" "home" "XDG_CACHE_HOME" "xdg" "XDG_CONFIG_HOME" "config" "TRITON_CACHE_DIR" "triton" "TORCHINDUCTOR_CACHE_DIR" "inductor" "TORCH_EXTENSIONS_DIR" "extensions" "CUDA_CACHE_PATH" "cuda" "HF_HOME" "hub" "FLASHINFER_WORKSPACE_BASE" "flashinfer" "NUMBA_CACHE_DIR" "numba" "OUTLINES_CACHE_DIR" "outlines" "MPLCONFIGDIR" "matplotlib" }}
{{- range $variable, $folder := $folders }}
- {name: {{ $variable }}, value: /cache/{{ $folder }}}
{{- end }}
# torch asks for the user's name, which a bare number lacks.
- {name: USER, value: catalejo}
- {name: LOGNAME, value: catalejo}
{{- with .Values.engine.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* dict "root" . "leader" true|false : workers of a LeaderWorkerSet serve no HTTP, so they have no probes. */}}
{{- define "catalejo.enginePod" -}}
{{- $root := .root }}
{{- $e := $root.Values.engine }}
{{- $for := dict "root" $root "for" "engine" }}
metadata:
  labels:
    {{- include "catalejo.labels" (dict "root" $root "component" (ternary "engine" "engine-worker" .leader)) | nindent 4 }}
    {{- with $e.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/token: {{ toJson $root.Values.engineToken | sha256sum }}
    {{- with $e.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "catalejo.podBasics" $root | nindent 2 }}
  {{- include "catalejo.placement" $e | trim | nindent 2 }}
  {{- with $e.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $e.drain.terminationGracePeriodSeconds }}
  {{- include "catalejo.waitForWeights" $for | trim | nindent 2 }}
  containers:
    - name: engine
      image: {{ include "catalejo.engineImage" $root }}
      imagePullPolicy: {{ $root.Values.images.engine.pullPolicy }}
      args: {{- include "catalejo.engineArgs" $root | nindent 8 }}
      env: {{- include "catalejo.engineEnv" $root | trim | nindent 8 }}
      {{- if .leader }}
      ports:
        - {name: engine, containerPort: 30000}
      startupProbe:
        httpGet: {path: {{ $e.probes.readinessPath }}, port: engine}
        periodSeconds: 10
        timeoutSeconds: {{ $e.probes.timeoutSeconds }}
        failureThreshold: {{ div (add $e.probes.startupBudgetSeconds 9) 10 }}
      readinessProbe:
        httpGet: {path: {{ $e.probes.readinessPath }}, port: engine}
        periodSeconds: 5
        timeoutSeconds: {{ $e.probes.timeoutSeconds }}
        failureThreshold: 3
      livenessProbe:
        httpGet: {path: {{ $e.probes.livenessPath }}, port: engine}
        periodSeconds: {{ $e.probes.livenessPeriodSeconds }}
        timeoutSeconds: {{ $e.probes.timeoutSeconds }}
        failureThreshold: {{ $e.probes.livenessFailures }}
      {{- end }}
      lifecycle:
        preStop:
          {{- if $e.drain.preStopSeconds }}
          sleep: {seconds: {{ $e.drain.preStopSeconds }}}
          {{- else }}
          exec: {command: ["true"]}
          {{- end }}
      resources: {{- include "catalejo.engineResources" $root | nindent 8 }}
      securityContext: {{- toYaml (mergeOverwrite (deepCopy $root.Values.security.container) $root.Values.security.engineContainer) | nindent 8 }}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: cache, mountPath: /cache}
        - {name: tmp, mountPath: /tmp}
        {{- include "catalejo.weightsMount" $for | trim | nindent 8 }}
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $e.sharedMemory }}}
    - name: cache
      emptyDir: {sizeLimit: {{ $e.cacheSizeLimit }}}
    - name: tmp
      emptyDir: {}
    {{- include "catalejo.weightsVolume" $for | trim | nindent 4 }}
{{- end }}

{{- define "catalejo.engineResources" -}}
{{- $e := .Values.engine -}}
{{- $devices := deepCopy $e.extraResources -}}
{{- if gt (int $e.gpus) 0 }}{{ $devices = set $devices $e.gpuResource (int $e.gpus) }}{{ end -}}
{{- $r := deepCopy $e.resources -}}
{{- toYaml (merge (dict "requests" (merge (deepCopy $devices) (default dict $r.requests)) "limits" (merge (deepCopy $devices) (default dict $r.limits))) $r) -}}
{{- end }}
