"""JSON logs: what metrics cannot say. Bytes from files, stdin and HTTP pushes in; a `LogSnapshot` out.

    reader = LogReader(LogsConfig(...))              vllm_vitals.logs.reader, vllm_vitals.logs.config
    asyncio.create_task(reader.run(stop))            stop: asyncio.Event; never raises for what a log contains
    app.add_routes(reader.push_routes())             POST /api/v1/logs
    for name, labels, value in log_families(reader.snapshot(now)): ...     vllm_vitals.logs.metrics, catalogue names

Invariant: every line ends in exactly one counted result (`events.RESULTS`), and what is served is what is on disk.
"""
