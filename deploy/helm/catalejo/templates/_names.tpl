{{/* Names, labels and image references. */}}

{{- define "catalejo.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}
{{- end }}

{{- define "catalejo.gateway" -}}{{ include "catalejo.fullname" . }}-gateway{{- end }}
{{- define "catalejo.engine" -}}{{ include "catalejo.fullname" . }}-engine{{- end }}

{{/* The headless Service whose endpoints are this release's engines, for gateways that look for them. */}}
{{- define "catalejo.engineMembers" -}}{{ include "catalejo.engine" . }}-members{{- end }}

{{/* Ports of an engine that gateways speak to; KV events have one per data-parallel rank. */}}
{{- define "catalejo.enginePorts" -}}
- {port: 30000}
{{- if .Values.engine.kvEvents }}
- {port: 5557, endPort: 5656}
- {port: 5657, endPort: 5756}
{{- end }}
{{- end }}

{{/* The port of a URL: dict "url" "redis://host:6380/0" "default" 6379 */}}
{{- define "catalejo.urlPort" -}}
{{- $found := regexFind ":[0-9]+$" (urlParse .url).host -}}
{{- $port := default .default (trimPrefix ":" $found) -}}
{{- if or (lt (int $port) 1) (gt (int $port) 65535) }}{{ fail (printf "the port %v of %q is outside 1 to 65535: change the URL." $port .url) }}{{ end -}}
{{ $port }}
{{- end }}

{{/* "true" when gateways ask for keys, else nothing. */}}
{{- define "catalejo.hasKeys" -}}
{{- $auth := .Values.gateway.auth -}}
{{- if or $auth.apiKeys $auth.apiKeysSecret.name $auth.tenantsSecret.name }}true{{ end -}}
{{- end }}

{{/* A CPU quantity ("250m", "2", 1.5) in thousandths. */}}
{{- define "catalejo.milliCpu" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text }}{{ trimSuffix "m" $text }}{{ else }}{{ mulf (float64 $text) 1000 | int }}{{ end -}}
{{- end }}

{{/* "true" when gateways look for engines themselves, else nothing. */}}
{{- define "catalejo.discovers" -}}
{{- if and .Values.engine.enabled (ne .Values.gateway.discovery.source "static") }}true{{ end -}}
{{- end }}

{{- define "catalejo.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ default (include "catalejo.fullname" .) .Values.serviceAccount.name }}
{{- else -}}{{ default "default" .Values.serviceAccount.name }}{{- end -}}
{{- end }}

{{- define "catalejo.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of an object: dict "root" . "component" "gateway" */}}
{{- define "catalejo.labels" -}}
{{ include "catalejo.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: catalejo
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An image name: dict "root" . "image" (dict repository tag digest) */}}
{{- define "catalejo.image" -}}
{{- $registry := .root.Values.global.imageRegistry | trimSuffix "/" -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- if .image.digest -}}
{{ .image.repository }}{{ with .image.tag }}:{{ . }}{{ end }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end }}

{{- define "catalejo.gatewayImage" -}}{{ include "catalejo.image" (dict "root" . "image" .Values.images.gateway) }}{{- end }}

{{- define "catalejo.engineImage" -}}
{{- $repository := default (printf "catalejo/engine-%s" .Values.engine.backend) .Values.images.engine.repository -}}
{{- include "catalejo.image" (dict "root" . "image" (merge (dict "repository" $repository) .Values.images.engine)) -}}
{{- end }}

{{- define "catalejo.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}
