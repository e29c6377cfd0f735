{{/* The volume with the checkpoint and where it is mounted. */}}

{{- define "catalejo.downloadName" -}}
{{- $d := .Values.weights.download -}}
{{- $key := list $d.repository $d.revision $d.endpoint (include "catalejo.gatewayImage" .) | toJson | sha256sum | trunc 8 -}}
{{ include "catalejo.fullname" . }}-weights-{{ $key }}
{{- end }}

{{- define "catalejo.weightsClaim" -}}
{{- if eq .Values.weights.source "download" -}}{{ include "catalejo.fullname" . }}-weights{{- else -}}{{ .Values.weights.pvc.claimName }}{{- end -}}
{{- end }}

{{- define "catalejo.hasOwnCheckpoint" -}}
{{- if or .Values.gateway.checkpoint.claimName .Values.gateway.checkpoint.image }}true{{ end -}}
{{- end }}

{{/* dict "root" . "for" "gateway"|"engine" -> a volume named weights, or nothing for shipped checkpoints */}}
{{- define "catalejo.weightsVolume" -}}
{{- $w := .root.Values.weights -}}
{{- $own := .root.Values.gateway.checkpoint -}}
{{- $registry := .root.Values.global.imageRegistry | trimSuffix "/" -}}
{{- $prefix := ternary (printf "%s/" $registry) "" (ne $registry "") -}}
{{- if and (eq .for "gateway") $own.claimName }}
- name: weights
  persistentVolumeClaim: {claimName: {{ $own.claimName }}, readOnly: true}
{{- else if and (eq .for "gateway") $own.image }}
- name: weights
  image: {reference: {{ printf "%s%s" $prefix $own.image | quote }}, pullPolicy: {{ $w.image.pullPolicy }}}
{{- else if or (eq $w.source "pvc") (eq $w.source "download") }}
- name: weights
  persistentVolumeClaim: {claimName: {{ include "catalejo.weightsClaim" .root }}, readOnly: true}
{{- else if eq $w.source "hostPath" }}
- name: weights
  hostPath: {path: {{ $w.hostPath.path | quote }}, type: Directory}
{{- else if eq $w.source "image" }}
- name: weights
  image: {reference: {{ printf "%s%s" $prefix $w.image.reference | quote }}, pullPolicy: {{ $w.image.pullPolicy }}}
{{- end }}
{{- end }}

{{- define "catalejo.weightsMount" -}}
{{- if or (ne .root.Values.weights.source "shipped") (and (eq .for "gateway") (include "catalejo.hasOwnCheckpoint" .root)) }}
- {name: weights, mountPath: /weights, readOnly: true}
{{- end }}
{{- end }}

{{- define "catalejo.modelPath" -}}
{{- $w := .root.Values.weights -}}
{{- if and (eq .for "gateway") (include "catalejo.hasOwnCheckpoint" .root) -}}/weights
{{- else if eq $w.source "shipped" -}}/opt/catalejo/checkpoint
{{- else if eq $w.source "download" -}}/weights/{{ $w.download.revision | replace "/" "-" }}
{{- else -}}{{ printf "/weights/%s" $w.path | trimSuffix "/" }}{{- end -}}
{{- end }}

{{/* An init container that waits for the download: dict "root" . "for" ... */}}
{{- define "catalejo.waitForWeights" -}}
{{- if and (eq .root.Values.weights.source "download") (not (and (eq .for "gateway") (include "catalejo.hasOwnCheckpoint" .root))) }}
initContainers:
  - name: wait-for-weights
    image: {{ include "catalejo.gatewayImage" .root }}
    imagePullPolicy: {{ .root.Values.images.gateway.pullPolicy }}
    command: [sh, -c, 'until [ -f "$1/.catalejo-complete" ]; do echo "waiting for the download of the weights"; sleep 10; done', wait, {{ include "catalejo.modelPath" . | quote }}]
    securityContext: {{- toYaml .root.Values.security.container | nindent 6 }}
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
    volumeMounts: {{- include "catalejo.weightsMount" . | trim | nindent 6 }}
{{- end }}
{{- end }}
