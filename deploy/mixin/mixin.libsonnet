// vllm-mixin: the generated rules and dashboards as a Jsonnet mixin (prometheusAlerts, prometheusRules, grafanaDashboards).
// It writes no rule of its own: it reads what `vllm-vitals rules build` and `dashboards build` wrote, and sets a site's words.
(import 'config.libsonnet') + {
  local config = $._config,
  local modes = ['daemon', 'native', 'both'],
  local base = std.rstripChars(config.runbook_base, '/'),
  local grafana = std.rstripChars(config.grafana_url, '/'),
  local built_grafana = 'http://localhost:3000',

  local groups(text) = std.parseYaml(text).groups,

  local in_our_words(alert) =
    local notes = alert.annotations;
    alert {
      labels+: {
        severity: std.get(config.severity_labels, alert.labels.severity, alert.labels.severity),
        [if config.team != '' then 'team']: config.team,
      },
      annotations+: {
        runbook_url: base + '/' + alert.alert + '.md',
        // where the source was built with an address of its own, that one stays
        dashboard_url:
          if std.startsWith(notes.dashboard_url, built_grafana)
          then grafana + std.substr(notes.dashboard_url, std.length(built_grafana), std.length(notes.dashboard_url))
          else notes.dashboard_url,
      },
    },

  assert std.member(modes, config.mode) : '_config.mode: expected daemon, native or both, got ' + config.mode,

  prometheusAlerts+:: {
    groups+: [
      group { rules: [in_our_words(rule) for rule in group.rules if !std.member(config.without_alerts, rule.alert)] }
      for group in groups(if config.mode == 'native' then config.sources.alerts_native else config.sources.alerts)
    ],
  },

  prometheusRules+:: {
    groups+: (if config.mode == 'daemon' then [] else groups(config.sources.native)) + groups(config.sources.recording),
  },

  grafanaDashboardFolder:: config.grafana_folder,
  grafanaDashboards+:: {
    [name]: config.sources.dashboards[name] { tags+: config.dashboard_tags }
    for name in std.objectFields(config.sources.dashboards)
  },
}
