{{/* What every pod of this chart has. */}}

{{- define "catalejo.podBasics" -}}
serviceAccountName: {{ include "catalejo.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "catalejo.pullSecrets" . }}
securityContext: {{- toYaml .Values.security.pod | nindent 2 }}
{{- end }}

{{- define "catalejo.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "catalejo.tokenSecret" -}}
{{ default (printf "%s-engine-token" (include "catalejo.fullname" .)) .Values.engineToken.existingSecret }}
{{- end }}

{{- define "catalejo.tokenKey" -}}
{{ ternary .Values.engineToken.key "token" (ne .Values.engineToken.existingSecret "") }}
{{- end }}

{{- define "catalejo.tokenEnv" -}}
- name: CATALEJO_ENGINE_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "catalejo.tokenSecret" . }}, key: {{ include "catalejo.tokenKey" . }}}}
{{- end }}

{{/* The URL of the gateway inside the cluster. */}}
{{- define "catalejo.gatewayUrl" -}}
{{ ternary "https" "http" (ne .Values.gateway.tls.secretName "") }}://{{ include "catalejo.gateway" . }}.{{ .Release.Namespace }}.svc:{{ .Values.gateway.service.port }}
{{- end }}

{{/* An API key for the helm test and the load test, if any. */}}
{{- define "catalejo.testKeyEnv" -}}
{{- if .Values.tests.apiKeySecret.name }}
- name: CATALEJO_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.tests.apiKeySecret.name }}, key: {{ .Values.tests.apiKeySecret.key }}}}
{{- else if .Values.gateway.auth.apiKeys }}
- name: CATALEJO_API_KEY
  valueFrom: {secretKeyRef: {name: {{ include "catalejo.gateway" . }}-keys, key: first}}
{{- end }}
{{- end }}
