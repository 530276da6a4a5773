"""What a fleet did over a period, on one time grid: from a Prometheus API, or from a recording."""
