"""The commands of the daemon itself: run, check, record, config. Each module loads only when its command is called."""
