"""The weekly capacity review, tuning experiments and what-if: from any Prometheus-compatible API, or a recording."""
