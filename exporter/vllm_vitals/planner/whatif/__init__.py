"""What a knob would do to this workload: the simulated server, fitted to what was observed."""
