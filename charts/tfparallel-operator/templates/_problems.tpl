{{/* Fails with a sentence about values that are misplaced, or that contradict each other. */}}
{{- define "tfparallel.checkValues" -}}
{{- $renamed := dict
  "args" "extraArgs"
  "containerSecurityContext" "securityContext"
  "env" "extraEnv"
  "installCRDs" "crds.install"
  "prometheus" "metrics"
  "replicaCount" "replicas"
  "serviceMonitor" "metrics.serviceMonitor"
  "volumeMounts" "extraVolumeMounts"
  "volumes" "extraVolumes"
-}}
{{- range $name, $here := $renamed }}
  {{- if hasKey $.Values $name }}
    {{- fail (printf "the value %s has another name in this chart: write %s" $name $here) }}
  {{- end }}
{{- end }}
{{- /* In a parent chart, `global` has values of other charts too. */}}
{{- if .Chart.IsRoot }}
  {{- range $name := keys (omit .Values.global "imageRegistry" "imagePullSecrets") | sortAlpha }}
    {{- fail (printf "global.%s has no meaning here: global takes imageRegistry and imagePullSecrets" $name) }}
  {{- end }}
{{- end }}
{{- if not (or .Values.rbac.clusterRights .Values.watchNamespaces) }}
  {{- fail "rbac.clusterRights is false: name the namespaces of jobs in watchNamespaces" }}
{{- end }}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
  {{- fail "serviceAccount.create is false and serviceAccount.name is empty: name the account that has the operator's rights" }}
{{- end }}
{{- if eq (int .Values.ports.progress) (int .Values.ports.health) }}
  {{- fail (printf "ports.progress and ports.health are both %v: choose two ports" .Values.ports.health) }}
{{- end }}
{{- if not .Values.metrics.enabled }}
  {{- range list "serviceMonitor" "prometheusRule" "dashboard" }}
    {{- if (get $.Values.metrics .).enabled }}
      {{- fail (printf "metrics.%s.enabled is true and metrics.enabled is false: set both, or neither" .) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if and (not .Values.networkPolicy.metricsFrom) .Values.networkPolicy.enabled .Values.metrics.serviceMonitor.enabled }}
  {{- fail "metrics.serviceMonitor.enabled is true and networkPolicy.metricsFrom is empty: name there the pods of Prometheus" }}
{{- end }}
{{- if and .Values.networkPolicy.metricsFrom (not .Values.metrics.enabled) }}
  {{- fail "networkPolicy.metricsFrom lets somebody read the metrics and metrics.enabled is false: clear the one, or set the other" }}
{{- end }}
{{- with .Values.podDisruptionBudget }}
  {{- if and (ne (toString .maxUnavailable) "") (ne (toString .minAvailable) "") }}
    {{- fail "podDisruptionBudget.maxUnavailable and podDisruptionBudget.minAvailable are both set: clear one" }}
  {{- end }}
  {{- if and .enabled (not (hasSuffix "%" (toString .minAvailable))) (gt (int $.Values.replicas) 1) (ge (int .minAvailable) (int $.Values.replicas)) }}
    {{- fail (printf "podDisruptionBudget.minAvailable is %v and replicas is %v: no node of an operator could be drained; lower the one, or raise the other" .minAvailable $.Values.replicas) }}
  {{- end }}
{{- end }}
{{- range .Values.extraEnv }}
  {{- if hasPrefix "TFPARALLEL_" .name }}
    {{- fail (printf "extraEnv has %s, which the chart sets from its values: set the value, or use extraArgs" .name) }}
  {{- end }}
{{- end }}
{{- with .Values.test }}
  {{- if and .enabled .namespace $.Values.watchNamespaces (not (has .namespace $.Values.watchNamespaces)) }}
    {{- fail (printf "test.namespace is %s, which is not in watchNamespaces: the operator would not run the job" .namespace) }}
  {{- end }}
{{- end }}
{{- end -}}
