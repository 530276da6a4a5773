"""The past as the daemon would have judged it, from the raw samples that any Prometheus holds."""
