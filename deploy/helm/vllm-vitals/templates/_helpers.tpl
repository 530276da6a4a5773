{{- define "vllm-vitals.fullname" -}}
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

{{- /* What selects: the name is also the job, which VLLMExporterDown asks for. */ -}}
{{- define "vllm-vitals.selector" -}}
app.kubernetes.io/name: vllm-vitals
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vllm-vitals.labels" -}}
{{ include "vllm-vitals.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "vllm-vitals.operatorLabels" -}}
{{ include "vllm-vitals.labels" . }}
{{- with .Values.operatorLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vllm-vitals.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "vllm-vitals.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.probe" -}}
{{- if .Values.webConfigSecret -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ .path }}, port: http}
{{- end }}
timeoutSeconds: 3
{{- end -}}

{{- /* TLS or a login on the port: the probe only connects, as the kubelet has no credentials. */ -}}

{{- /* The presets of the values, with the platform's port and the Service that is made for each: a YAML list. */ -}}
{{- define "vllm-vitals.presets" -}}
{{- $root := . -}}
{{- $table := .Files.Get "files/presets.yml" | fromYaml -}}
{{- $out := list -}}
{{- range .Values.presets -}}
{{- $own := contains "=" .name -}}
{{- $preset := $own | ternary (dict "label" (.name | splitList "=" | first) "value" (.name | splitList "=" | last) "port" 8000) (get $table .name) -}}
{{- $port := .port | default $preset.port | int -}}
{{- $value := and (not $own) (hasSuffix "/port" $preset.label) | ternary ($port | toString) $preset.value -}}
{{- $slug := regexReplaceAll "[^a-z0-9]+" (lower .name) "-" | trunc 40 | trimAll "-" -}}
{{- $name := printf "%s-%s" (include "vllm-vitals.fullname" $root) $slug | trunc 57 | trimSuffix "-" -}}
{{- if ne $port (int $preset.port) -}}{{- $name = printf "%s-%d" $name $port -}}{{- end -}}
{{- $out = append $out (dict "service" $name "namespace" .namespace "port" $port "label" $preset.label "value" $value) -}}
{{- end -}}
{{ toJson $out }}
{{- end -}}

{{- /* The daemon's config: presets take the place of its discovery. */ -}}
{{- define "vllm-vitals.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.presets -}}
{{- $found := list -}}
{{- $api := eq .Values.discoverBy "api" -}}
{{- range include "vllm-vitals.presets" . | fromJsonArray -}}
{{- if $api -}}
{{- $found = append $found (dict "kubernetes_sd" (dict "namespace" .namespace "service" .service "port" (int .port))) -}}
{{- else -}}
{{- $host := printf "%s.%s.svc.cluster.local" .service .namespace -}}
{{- $sd := dict "names" (list $host) "type" "A" "port" (int .port) "refresh_interval" "15s" -}}
{{- $found = append $found (dict "dns_sd" $sd "labels" (dict "namespace" .namespace)) -}}
{{- end -}}
{{- end -}}
{{- $config = set $config "discovery" $found -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- /* Namespaces whose EndpointSlices the daemon lists: a JSON list. */ -}}
{{- define "vllm-vitals.asked" -}}
{{- $asked := .Values.apiNamespaces -}}
{{- if eq .Values.discoverBy "api" -}}
{{- range .Values.presets -}}{{- $asked = append $asked .namespace -}}{{- end -}}
{{- end -}}
{{ toJson (uniq $asked) }}
{{- end -}}
