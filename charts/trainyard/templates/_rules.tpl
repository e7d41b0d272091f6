{{/*
What the operator may do with jobs and what belongs to them, in all namespaces or in some. Nothing is granted that it does
not use: tests/apiserver compares these rules with the calls that it makes. No secrets, no wildcards, no exec.
*/}}
{{- define "trainyard.jobRules" -}}
- apiGroups: [trainyard.dev]
  resources: [trainingjobs]
  verbs: [list, watch, delete]                # delete: after ttlSecondsAfterFinished
- apiGroups: [trainyard.dev]
  resources: [trainingjobs/status]
  verbs: [update]
- apiGroups: [trainyard.dev]
  resources: [trainingjobs/finalizers]        # asked for by OwnerReferencesPermissionEnforcement
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, delete]   # delete: what a deleted job of the same name has left
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]                 # what those names resolve to
  verbs: [list, watch, create, update]
{{- if .Values.control.enabled }}
- apiGroups: [""]
  resources: [configmaps]                     # ledgers of ended jobs; of jobs with an engine: its configuration, whom to trust
  verbs: [get, create, patch, delete]         # delete: as of services
{{- else }}
- apiGroups: [""]
  resources: [configmaps]                     # ledgers of ended jobs
  resourceNames: [trainyard-ledgers]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [configmaps]                     # whose name a right to create cannot have
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]         # of checkpoints: whether all nodes may write to it
  verbs: [get]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* What belongs to no namespace. */}}
{{- define "trainyard.clusterRules" -}}
{{- if .Values.rbac.nodes -}}
- apiGroups: [""]
  resources: [nodes]                          # only read
  verbs: [list, watch]
{{- end }}
{{- if .Values.control.enabled }}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]                   # whose connection it is
  verbs: [create]
{{- end }}
{{- end -}}

{{/* A binding of a role to the operator. Call with (dict "root" $ "kind" "ClusterRole"). */}}
{{- define "trainyard.bound" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ include "trainyard.operatorName" .root }}
subjects:
- kind: ServiceAccount
  name: {{ include "trainyard.serviceAccountName" .root | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}
