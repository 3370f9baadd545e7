{{- define "cosyvoice-operator.name" -}}
{{ printf "%s" (.Release.Name | trunc 50 | trimSuffix "-") }}
{{- end -}}
{{- /* A colon is in no namespace and no release: `a-b` and `c` are not `a` and `b-c`. */ -}}
{{- define "cosyvoice-operator.clusterRole" -}}
{{ printf "%s:%s" .Release.Namespace (include "cosyvoice-operator.name" .) }}
{{- end -}}
{{- define "cosyvoice-operator.selector" -}}
app.kubernetes.io/name: cosyvoice-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "cosyvoice-operator.labels" -}}
{{ include "cosyvoice-operator.selector" . }}
app.kubernetes.io/part-of: cosyvoice-operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}
