// What a site sets of the mixin. Keys are those of the section `alerts` of a config file (docs/alerts.md); what stands inside
// expressions (thresholds, SLOs, identity labels) is set there alone: build with it, and give the files as `sources`.
{
  _config+:: {
    // daemon: a vllm-vitals daemon is scraped. native: recording rules over vLLM's own series, no daemon. both: either.
    mode: 'daemon',
    grafana_url: 'http://localhost:3000',
    // where alerts/runbooks is published
    runbook_base: 'alerts/runbooks',
    // what the label severity is called here: { page: 'critical', ticket: 'warning' }
    severity_labels: {},
    // label team on every alert, where set
    team: '',
    // names of alerts to leave out
    without_alerts: [],
    // Grafana's folder, for tools that read it
    grafana_folder: 'vLLM',
    dashboard_tags: [],
    // the generated files that all of this is made of
    sources: {
      alerts: importstr '../../alerts/alerts.yml',
      alerts_native: importstr '../kubernetes/chart/alerts-native.yml',
      recording: importstr '../../alerts/recording.yml',
      native: importstr '../../alerts/native.yml',
      dashboards: {
        'vllm-vitals-capacity.json': import '../../dashboards/vllm-vitals-capacity.json',
        'vllm-vitals-engine.json': import '../../dashboards/vllm-vitals-engine.json',
        'vllm-vitals-overview.json': import '../../dashboards/vllm-vitals-overview.json',
        'vllm-vitals-self.json': import '../../dashboards/vllm-vitals-self.json',
        'vllm-vitals-workload.json': import '../../dashboards/vllm-vitals-workload.json',
      },
    },
  },
}
