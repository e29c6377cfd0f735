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

{{- define "catalejo.gatewayConfig" -}}
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
{{- toYaml (mustMergeOverwrite $config (deepCopy .Values.gateway.config)) -}}
{{- end }}
