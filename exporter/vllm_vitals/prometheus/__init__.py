"""What a Prometheus keeps of vLLM servers: its API, and raw samples as the scrapes that they were."""
