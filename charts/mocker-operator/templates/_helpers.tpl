{{- define "mocker-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "mocker-operator.fullname" -}}
{{- $name := include "mocker-operator.name" . -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else if hasPrefix (printf "%s-" .Release.Name) $name }}
{{- $name }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "mocker-operator.natsName" -}}
{{- printf "%s-nats" (.Release.Name | trunc 58 | trimSuffix "-") }}
{{- end }}

{{- define "mocker-operator.natsUrl" -}}
{{- if .Values.nats.enabled }}
{{- printf "nats://%s.%s.svc:4222" (include "mocker-operator.natsName" .) .Release.Namespace }}
{{- else }}
{{- required "nats.externalUrl: set it to the URL of a NATS server with JetStream, or set nats.enabled to true" .Values.nats.externalUrl }}
{{- end }}
{{- end }}

{{- define "mocker-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "mocker-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Image reference of a dict with repository, tag and digest. */}}
{{- define "mocker-operator.reference" -}}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository .tag }}
{{- end }}
{{- end }}

{{- define "mocker-operator.image" -}}
{{- include "mocker-operator.reference" (dict "repository" .Values.image.repository "digest" .Values.image.digest "tag" (default .Chart.AppVersion .Values.image.tag)) }}
{{- end }}

{{- define "mocker-operator.workerImage" -}}
{{- with .Values.workers.image }}
{{- if .repository }}
{{- include "mocker-operator.reference" (dict "repository" .repository "digest" .digest "tag" (default $.Chart.AppVersion .tag)) }}
{{- else }}
{{- include "mocker-operator.image" $ }}
{{- end }}
{{- end }}
{{- end }}

{{- define "mocker-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: mocker-operator
{{- end }}

{{- define "mocker-operator.operatorSelector" -}}
app.kubernetes.io/name: {{ include "mocker-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "mocker-operator.natsSelector" -}}
app.kubernetes.io/name: nats
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: nats
{{- end }}

{{/* Pod and container security contexts that pod security "restricted" accepts. */}}
{{- define "mocker-operator.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "mocker-operator.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where pods of this release may run. */}}
{{- define "mocker-operator.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the operator may do: apply children, read pods, report. */}}
{{- define "mocker-operator.rules" -}}
- apiGroups: [mocker.dev]
  resources: [mockerdeployments]
  verbs: [get, list, watch]
- apiGroups: [mocker.dev]
  resources: [mockerdeployments/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
