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
{{- with .Values.gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
