"""Recording rules, alerting rules, Alertmanager routes and runbooks for vLLM, generated from Python."""
