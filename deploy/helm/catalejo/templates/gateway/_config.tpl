{{/* The gateway's configuration file: what the chart knows, under what gateway.config says. */}}

{{- define "catalejo.engines" -}}
{{- $e := .Values.engine -}}
{{- $name := include "catalejo.engine" . -}}
{{- if and $e.enabled (eq .Values.gateway.discovery.source "static") -}}
{{- if eq $e.kind "Deployment" }}
{{- if gt (int $e.replicas) 0 }}
- {name: {{ $name }}, url: "http://{{ $name }}.{{ .Release.Namespace }}.svc:30000"}
{{- end }}
{{- else }}
{{- /* Stable names: pod N of the StatefulSet, leader of group N of the LeaderWorkerSet. */}}
{{- range $i := until (int $e.replicas) }}
- {name: {{ $name }}-{{ $i }}, url: "http://{{ $name }}-{{ $i }}.{{ $name }}.{{ $.Release.Namespace }}.svc:30000"}
{{- end }}
{{- end }}
{{- end }}
{{- range $e.external }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}

{{- define "catalejo.discovery" -}}
{{- $service := include "catalejo.engineMembers" . -}}
source: {{ .Values.gateway.discovery.source }}
{{- if eq .Values.gateway.discovery.source "dns" }}
dns: {name: {{ $service }}.{{ .Release.Namespace }}.svc, port: 30000}
{{- else }}
endpointslices: {service: {{ $service }}, namespace: {{ .Release.Namespace }}, port: engine}
{{- end }}
{{- end }}

{{/* What shared limits, ledger and traces are set to; secrets come through the environment (_env.tpl). */}}
{{- define "catalejo.redisConfig" -}}
redis_url: {{ .Values.redis.url | quote }}
{{- if .Values.redis.caSecret.name }}
redis_ca_file: /etc/catalejo-redis/ca.crt
{{- end }}
{{- end }}

{{- define "catalejo.observabilityConfig" -}}
{{- $l := .Values.gateway.ledger -}}
{{- $t := .Values.gateway.tracing -}}
{{- if $l.enabled }}
ledger: {format: {{ $l.format }}, retention_days: {{ int $l.retentionDays }}, currency: {{ $l.currency | quote }}, prices: {{ toJson $l.prices }}}
{{- end }}
{{- if $t.endpoint }}
tracing: {endpoint: {{ $t.endpoint | quote }}, sample_ratio: {{ $t.sampleRatio }}}
{{- end }}
{{- end }}

{{- define "catalejo.gatewayConfig" -}}
{{- $g := .Values.gateway -}}
{{- $config := dict
  "host" "0.0.0.0"
  "port" 8000
  "model_path" (include "catalejo.modelPath" (dict "root" . "for" "gateway"))
  "model_name" .Values.model.name
  "model_aliases" .Values.model.aliases
  "shutdown_grace_s" .Values.gateway.drain.drainSeconds
  "engines" (include "catalejo.engines" . | fromYamlArray) -}}
{{- if include "catalejo.discovers" . }}{{ $_ := set $config "discovery" (include "catalejo.discovery" . | fromYaml) }}{{ end -}}
{{- if .Values.model.contextLength }}{{ $_ := set $config "context_length" (int .Values.model.contextLength) }}{{ end -}}
{{- if gt (int $g.workers) 1 }}{{ $_ := set $config "workers" (int $g.workers) }}{{ end -}}
{{- if $g.operations.enabled }}{{ $_ := set $config "operations" (dict "host" "0.0.0.0" "port" (int $g.operations.port) "debug" $g.operations.debug) }}{{ end -}}
{{- if $g.tls.secretName }}{{ $_ := set $config "tls" (dict "certificate" "/etc/catalejo-tls/tls.crt" "key" "/etc/catalejo-tls/tls.key" "minimum_version" $g.tls.minimumVersion) }}{{ end -}}
{{- if .Values.redis.url }}{{ $_ := set $config "admission" (include "catalejo.redisConfig" . | fromYaml) }}{{ end -}}
{{- if or $g.ledger.enabled $g.tracing.endpoint }}{{ $_ := set $config "observability" (include "catalejo.observabilityConfig" . | fromYaml) }}{{ end -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy (default dict .Values.gateway.config))) -}}
{{- end }}
