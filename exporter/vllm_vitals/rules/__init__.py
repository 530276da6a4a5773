"""Prometheus rules, Alertmanager routes and runbooks in code. Never imported by the daemon."""
