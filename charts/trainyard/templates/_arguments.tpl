{{/* The operator's command line: docs/reference/operator.md. */}}
{{- define "trainyard.arguments" -}}
- --leader-elect={{ .Values.leaderElection.enabled }}
{{- if .Values.leaderElection.enabled }}
- --leader-elect-resource-name={{ include "trainyard.operatorName" . }}
{{- end }}
{{- with .Values.watchNamespaces }}
- --namespaces={{ join "," . }}
{{- end }}
- --max-concurrent-reconciles={{ .Values.maxConcurrentReconciles }}
- --kube-api-qps={{ .Values.kubeApi.qps }}
- --kube-api-burst={{ .Values.kubeApi.burst }}
- --metrics-bind-address={{ if .Values.metrics.enabled }}:{{ .Values.metrics.port }}{{ else }}0{{ end }}
- --health-probe-bind-address=:{{ .Values.probes.port }}
- --worker-image={{ include "trainyard.image" (dict "root" . "image" .Values.worker.image) }}
- --worker-image-pull-policy={{ include "trainyard.pullPolicy" (dict "image" .Values.worker.image) }}
{{- if .Values.worker.gpuImage.repository }}
- --worker-gpu-image={{ include "trainyard.image" (dict "root" . "image" (merge (dict "registry" .Values.worker.image.registry) .Values.worker.gpuImage)) }}
{{- end }}
- --worker-rollout={{ .Values.worker.rollout }}
{{- with .Values.worker.gpuRuntimeClassName }}
- --gpu-runtime-class={{ . }}
{{- end }}
{{- if .Values.control.enabled }}
- --control-bind-address=:{{ .Values.control.port }}
- --control-address={{ include "trainyard.fullname" . }}-control.{{ .Release.Namespace }}.svc:{{ .Values.control.port }}
- --control-tls-secret={{ include "trainyard.controlSecret" . }}
- --control-connections-per-address={{ .Values.control.connectionsPerAddress }}
{{- end }}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}
