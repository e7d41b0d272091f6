{{/* What the names of all objects start with: the release's name, with the chart's unless it is in there. */}}
{{- define "trainyard.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trainyard.operatorName" -}}
{{- include "trainyard.fullname" . }}-operator
{{- end -}}

{{/* What selects the operator's pods; never changes over the life of a release. */}}
{{- define "trainyard.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Labels and annotations of an object. Call with (dict "root" $ "labels" {...} "annotations" {...}); an object's own win. */}}
{{- define "trainyard.metadata" -}}
{{- $root := .root -}}
{{- $common := include "trainyard.selectorLabels" $root | fromYaml -}}
{{- $_ := set $common "app.kubernetes.io/part-of" "trainyard" -}}
{{- $_ := set $common "app.kubernetes.io/version" ($root.Chart.AppVersion | toString) -}}
{{- $_ := set $common "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $common "helm.sh/chart" (printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_")) -}}
labels:
  {{- mustMergeOverwrite (dict) $root.Values.commonLabels (.labels | default dict) $common | toYaml | nindent 2 }}
{{- with mustMergeOverwrite (dict) $root.Values.commonAnnotations (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "trainyard.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "trainyard.operatorName" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image's name. Call with (dict "root" $ "image" .Values.image). */}}
{{- define "trainyard.image" -}}
{{- $name := .image.repository -}}
{{- if .image.registry -}}{{- $name = printf "%s/%s" (trimSuffix "/" .image.registry) $name -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* When an image is pulled. Call as trainyard.image. One that no registry is named for is brought to the nodes: what a public registry has under its name is not ours. */}}
{{- define "trainyard.pullPolicy" -}}
{{- if .image.pullPolicy -}}
{{- .image.pullPolicy -}}
{{- else if or .image.registry .image.digest (regexMatch "^[^/]*[.:][^/]*/" .image.repository) -}}
IfNotPresent
{{- else -}}
Never
{{- end -}}
{{- end -}}

{{- define "trainyard.controlSecret" -}}
{{- default (printf "%s-control-tls" (include "trainyard.fullname" .)) .Values.control.tls.existingSecret -}}
{{- end -}}

{{- define "trainyard.testNamespace" -}}
{{- if .Values.test.namespace -}}
{{- .Values.test.namespace -}}
{{- else if .Values.watchNamespaces -}}
{{- first .Values.watchNamespaces -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/*
Whether the operator's pods that are there are elected by another Lease, or not at all: beside those of this version they would
work as well. Says nothing where helm sees no cluster.
*/}}
{{- define "trainyard.otherLease" -}}
{{- $name := include "trainyard.operatorName" . -}}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace $name -}}
{{- $arguments := toJson .spec.template.spec.containers -}}
{{- $named := contains "--leader-elect-resource-name=" $arguments -}}
{{- /* The name that the Lease of every release had once. */}}
{{- $unnamed := and (eq $name "trainyard-operator") (contains "--leader-elect=true" $arguments) -}}
{{- if not (or $named $unnamed) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* What cannot be said by the schema. */}}
{{- define "trainyard.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection.enabled) -}}
{{- fail "replicas: more than 1 without leaderElection.enabled: all of them would work at once" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: wanted metrics.enabled too, there is nothing to scrape" -}}
{{- end -}}
{{- if and .Values.metrics.rules.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.rules.enabled: wanted metrics.enabled too, or the alert that nobody leads fires for ever" -}}
{{- end -}}
{{- if and .Values.watchNamespaces .Values.test.namespace (not (has .Values.test.namespace .Values.watchNamespaces)) -}}
{{- fail (printf "test.namespace: found %s, wanted one of watchNamespaces: nobody would run the job of helm test" .Values.test.namespace) -}}
{{- end -}}
{{- if and .Values.test.image (not .Values.test.command) -}}
{{- fail "test.image: wanted test.command too, what that image is to run" -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (kindIs "invalid" .minAvailable) (kindIs "invalid" .maxUnavailable) -}}
{{- fail "podDisruptionBudget: wanted minAvailable or maxUnavailable, without either every pod may go" -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.probes.port) (int .Values.metrics.port) -}}
{{- fail "probes.port: the same as metrics.port, wanted another" -}}
{{- end -}}
{{- if and .Values.control.enabled (has (int .Values.control.port) (list (int .Values.probes.port) (int .Values.metrics.port))) -}}
{{- fail "control.port: the same as probes.port or metrics.port, wanted another" -}}
{{- end -}}
{{- end -}}
