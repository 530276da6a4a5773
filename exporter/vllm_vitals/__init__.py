"""vllm-vitals: the monitor for vLLM. Where everything lives:

catalog       every metric that is served, declared once
vllm/         what vLLM says: names in every spelling, eras, buckets, releases
core/         every judgement, pure: exposition, windows, signals, states, evidence, advice; time is an argument
config/       value types, schema, loading, error texts
scrape/       targets, discovery, shards, fetching, canaries, pollers
recordings/   the recording format, replay, the flight recorder
prometheus/   a Prometheus' API, and raw samples as the scrapes that they were
logs/         reading JSON logs
serve/        /metrics, the status page, JSON, the HTTP server
daemon        a fleet, the pages, signals and reload, on one event loop; clock, log and whole_file beside it
top/          the live view in a terminal
cli/          the command line
rules/ dashboards/ kubernetes/   generators (extra: build); generated writes and compares their files
doctor/       what is wrong with an installation, asked from outside
planner/ simulator/              review, snapshot, compare, what-if, incident; the simulated server

Nothing above the last three rows imports from them (tests/test_layering.py).
"""

__version__ = "0.1.0"
