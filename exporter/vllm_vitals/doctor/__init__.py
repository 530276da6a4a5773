"""What is wrong with an installation: daemon, Prometheus, Alertmanager, Grafana, asked from outside."""
