"""From addresses to snapshots: targets, discovery, shards, fetching, canaries, one poller a target."""
