"""What vLLM says: its metric names in every spelling, its eras and settings. Sources are vLLM's own files."""
