"""Grafana dashboards in code, built from the catalogue. Never imported by the daemon."""
