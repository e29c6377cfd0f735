{{/* Secrets reach the gateway through its environment; everything else is in the configuration file. */}}

{{- define "catalejo.gatewayEnv" -}}
{{ include "catalejo.tokenEnv" . }}
{{- $auth := .Values.gateway.auth }}
{{- if $auth.apiKeys }}
- name: CATALEJO_ADMISSION__API_KEYS
  valueFrom: {secretKeyRef: {name: {{ include "catalejo.gateway" . }}-keys, key: api-keys}}
{{- else if $auth.apiKeysSecret.name }}
- name: CATALEJO_ADMISSION__API_KEYS
  valueFrom: {secretKeyRef: {name: {{ $auth.apiKeysSecret.name }}, key: {{ $auth.apiKeysSecret.key }}}}
{{- end }}
{{- if $auth.tenantsSecret.name }}
- name: CATALEJO_ADMISSION__TENANTS
  valueFrom: {secretKeyRef: {name: {{ $auth.tenantsSecret.name }}, key: {{ $auth.tenantsSecret.key }}}}
{{- end }}
{{- with .Values.redis.passwordSecret }}
{{- if .name }}
- name: CATALEJO_ADMISSION__REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.gateway.tracing.headersSecret }}
{{- if .name }}
- name: CATALEJO_OBSERVABILITY__TRACING__HEADERS
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- if .Values.gateway.ledger.enabled }}
{{- /* One writer per file: replicas never share one, and a new pod has a new name. */}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: CATALEJO_OBSERVABILITY__LEDGER__PATH
  value: /var/lib/catalejo/$(POD_NAME){{ if eq .Values.gateway.ledger.format "sqlite" }}/usage.sqlite{{ end }}
{{- end }}
{{- with .Values.gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
