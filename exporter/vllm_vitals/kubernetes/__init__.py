"""Kubernetes objects in code: the daemon, its rules and its dashboards. Never imported by the daemon."""
