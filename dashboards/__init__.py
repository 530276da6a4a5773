"""Grafana dashboards in code: built from the catalogue, written to dashboards/out, never imported by the daemon."""
