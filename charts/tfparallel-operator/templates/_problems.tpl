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
{{- /* Where the condition of a parent chart works, nothing is rendered. */}}
{{- if eq (toString .Values.enabled) "false" }}
  {{- fail "enabled is false, which only a parent chart reads: give its dependency on this chart the condition tfparallel-operator.enabled, or do not install this chart" }}
{{- end }}
{{- range $name, $here := $renamed }}
  {{- if hasKey $.Values $name }}
    {{- fail (printf "the value %s has another name in this chart: write %s" $name $here) }}
  {{- end }}
{{- end }}
{{- /* In a parent chart, `global` has values of other charts too. */}}
{{- if .Chart.IsRoot }}
  {{- range $name := keys (omit (default dict .Values.global) "imageRegistry" "imagePullSecrets") | sortAlpha }}
    {{- fail (printf "global.%s has no meaning here: global takes imageRegistry and imagePullSecrets" $name) }}
  {{- end }}
{{- end }}
{{- $name := include "tfparallel.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
  {{- fail (printf "the objects would have the name %s, which a Service cannot have: set fullnameOverride to a name of a-z, 0-9 and '-' that begins with a letter" $name) }}
{{- end }}
{{- include "tfparallel.checkLabels" . }}
{{- include "tfparallel.checkVolumes" . }}
{{- range $name, $image := dict "image" .Values.image "trainer.image" .Values.trainer.image }}
  {{- if regexMatch "[:@][^/]*$" $image.repository }}
    {{- fail (printf "%s.repository is %s, which has a tag or a digest: write that to %s.tag or %s.digest" $name $image.repository $name $name) }}
  {{- end }}
{{- end }}
{{- with ((.Values.jobs).podDefaults).spec }}
  {{- range concat (default list .containers) (default list .initContainers) }}
    {{- if hasKey . "resources" }}
      {{- fail (printf "jobs.podDefaults has resources for the container %s, and queues read those of jobs alone: write them into the jobs" .name) }}
    {{- end }}
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
{{- if gt (default 1 (.Values.livenessProbe).successThreshold | int) 1 }}
  {{- fail (printf "livenessProbe.successThreshold is %v: Kubernetes takes 1 alone" .Values.livenessProbe.successThreshold) }}
{{- end }}
{{- if not .Values.metrics.enabled }}
  {{- range list "serviceMonitor" "prometheusRule" "dashboard" }}
    {{- if (get $.Values.metrics . | default dict).enabled }}
      {{- fail (printf "metrics.%s.enabled is true and metrics.enabled is false: set both, or neither" .) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with .Values.metrics.serviceMonitor }}
  {{- if and .interval (gt (include "tfparallel.milliseconds" .scrapeTimeout | int) (include "tfparallel.milliseconds" .interval | int)) }}
    {{- fail (printf "metrics.serviceMonitor.scrapeTimeout is %s and metrics.serviceMonitor.interval is %s: Prometheus wants a timeout that is not longer" .scrapeTimeout .interval) }}
  {{- end }}
{{- end }}
{{- if and (not (.Values.networkPolicy).metricsFrom) (.Values.networkPolicy).enabled (.Values.metrics.serviceMonitor).enabled }}
  {{- fail "metrics.serviceMonitor.enabled is true and networkPolicy.metricsFrom is empty: name there the pods of Prometheus" }}
{{- end }}
{{- if and (.Values.networkPolicy).metricsFrom (not .Values.metrics.enabled) }}
  {{- fail "networkPolicy.metricsFrom lets somebody read the metrics and metrics.enabled is false: clear the one, or set the other" }}
{{- end }}
{{- with .Values.podDisruptionBudget }}
  {{- if and (ne (include "tfparallel.text" .maxUnavailable) "") (ne (include "tfparallel.text" .minAvailable) "") }}
    {{- fail "podDisruptionBudget.maxUnavailable and podDisruptionBudget.minAvailable are both set: clear one" }}
  {{- end }}
  {{- if and .enabled (gt (int $.Values.replicas) 1) }}
    {{- $all := or (eq (include "tfparallel.text" .minAvailable) "100%") (and (not (hasSuffix "%" (include "tfparallel.text" .minAvailable))) (ge (int .minAvailable) (int $.Values.replicas))) }}
    {{- if $all }}
      {{- fail (printf "podDisruptionBudget.minAvailable is %v and replicas is %v: no node of an operator could be drained; lower the one, or raise the other" .minAvailable $.Values.replicas) }}
    {{- end }}
    {{- if has (include "tfparallel.text" .maxUnavailable) (list "0" "0%") }}
      {{- fail (printf "podDisruptionBudget.maxUnavailable is %v: no node of an operator could be drained; raise it, or set podDisruptionBudget.enabled to false" .maxUnavailable) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- range .Values.extraEnv }}
  {{- if or (hasPrefix "TFPARALLEL_" .name) (has .name (list "POD_NAME" "POD_NAMESPACE")) }}
    {{- fail (printf "extraEnv has %s, which the chart sets: use its values, or extraArgs" .name) }}
  {{- end }}
{{- end }}
{{- with .Values.test }}
  {{- if and .enabled .namespace $.Values.watchNamespaces (not (has .namespace $.Values.watchNamespaces)) }}
    {{- fail (printf "test.namespace is %s, which is not in watchNamespaces: the operator would not run the job" .namespace) }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Labels that an object would have twice. */}}
{{- define "tfparallel.checkLabels" -}}
{{- $chart := include "tfparallel.chartLabels" . | fromYaml }}
{{- $common := default dict .Values.commonLabels }}
{{- $all := merge dict $chart $common }}
{{- $added := dict
  "podLabels" .Values.podLabels
  "metrics.serviceMonitor.labels" (.Values.metrics.serviceMonitor).labels
  "metrics.prometheusRule.labels" (.Values.metrics.prometheusRule).labels
  "metrics.dashboard.labels" (.Values.metrics.dashboard).labels
-}}
{{- range $key := keys $common | sortAlpha }}
  {{- if hasKey $chart $key }}
    {{- fail (printf "commonLabels has %s, which the chart sets: remove it" $key) }}
  {{- end }}
{{- end }}
{{- range $value, $labels := $added }}
  {{- range $key := keys (default dict $labels) | sortAlpha }}
    {{- if hasKey $all $key }}
      {{- fail (printf "%s has %s, which %s" $value $key (ternary "the chart sets: remove it" "commonLabels has, too: remove one" (hasKey $chart $key))) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Volumes and mounts of the operator that the API server would refuse. */}}
{{- define "tfparallel.checkVolumes" -}}
{{- $volumes := list }}
{{- range .Values.extraVolumes }}
  {{- if has .name (append $volumes "tmp") }}
    {{- fail (printf "extraVolumes has a second volume with the name %s: choose another" .name) }}
  {{- end }}
  {{- $volumes = append $volumes .name }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
  {{- if not (has .name (append $volumes "tmp")) }}
    {{- fail (printf "extraVolumeMounts has the volume %s and extraVolumes has not: add it there" .name) }}
  {{- end }}
  {{- if eq .mountPath "/tmp" }}
    {{- fail (printf "extraVolumeMounts mounts %s to /tmp, where the operator writes its temporary files: choose another mountPath" .name) }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A duration of Prometheus, such as 1m30s, as a number. */}}
{{- define "tfparallel.milliseconds" -}}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 }}
  {{- $factor := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+" .) }}
  {{- $sum = add $sum (mul (regexFind "[0-9]+" . | int) $factor) }}
{{- end }}
{{- $sum }}
{{- end -}}
