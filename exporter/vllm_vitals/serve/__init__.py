"""What the daemon serves: /metrics, the status page, JSON; the HTTP server, and who may use it."""
