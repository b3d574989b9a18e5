{{/* Name of all objects: the release's, with the chart's unless it holds it already. */}}
{{- define "tfparallel.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of an object outside the operator's namespace, which the same release name in another namespace
must not have. No name of a release or namespace has a dot, so no two pairs make one name. */}}
{{- define "tfparallel.outerName" -}}
{{- printf "%s.%s" (include "tfparallel.fullname" .) (include "tfparallel.namespace" .) -}}
{{- end -}}

{{/* Name of an object in a namespace that may be another than the operator's: call with the root and
the namespace. */}}
{{- define "tfparallel.nameIn" -}}
{{- $root := first . -}}
{{- $elsewhere := not (has (last .) (list "" (include "tfparallel.namespace" $root))) -}}
{{- include (ternary "tfparallel.outerName" "tfparallel.fullname" $elsewhere) $root -}}
{{- end -}}

{{- define "tfparallel.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tfparallel.chartLabels" -}}
{{ include "tfparallel.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: tfparallel
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tfparallel.labels" -}}
{{ include "tfparallel.chartLabels" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tfparallel.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tfparallel.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image by digest or tag: call with a dict of image and root. */}}
{{- define "tfparallel.image" -}}
{{- $registry := coalesce (.root.Values.global).imageRegistry .image.registry | default "" | trimSuffix "/" -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A value as text; empty if it is missing. */}}
{{- define "tfparallel.text" -}}
{{- if not (kindIs "invalid" .) }}{{ toString . }}{{ end -}}
{{- end -}}

{{/* The items of pull secrets as Kubernetes takes them: call with the root and a list. A parent chart
may share names alone. */}}
{{- define "tfparallel.pullSecrets" -}}
{{- range concat (default list ((first .).Values.global).imagePullSecrets) (default list (last .)) }}
{{ list (kindIs "string" . | ternary (dict "name" .) .) | toYaml }}
{{- end }}
{{- end -}}

{{- define "tfparallel.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* The operator's service account as the one subject of a binding. */}}
{{- define "tfparallel.subjects" -}}
- kind: ServiceAccount
  name: {{ include "tfparallel.serviceAccount" . }}
  namespace: {{ include "tfparallel.namespace" . }}
{{- end -}}

{{/* Where the job of `helm test` runs: a namespace that the operator watches. */}}
{{- define "tfparallel.testNamespace" -}}
{{- default (default (include "tfparallel.namespace" .) (first (default list .Values.watchNamespaces))) .Values.test.namespace -}}
{{- end -}}

{{/* What makes an object a hook of `helm test`: call with the root and the weight, by which hooks are
ordered. No label of these is in the operator's selector. */}}
{{- define "tfparallel.testHook" -}}
{{- $root := first . -}}
labels:
  app.kubernetes.io/part-of: tfparallel
  app.kubernetes.io/component: test
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  {{- with $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-weight: {{ last . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
