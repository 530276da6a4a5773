"""vllm-vitals: watches vLLM servers and says what is wrong now, why, and how much room is left.

what is said          catalog (every metric), core/ (every judgement; pure)
the config            config, config_file (its keys), section, explain, strict_yaml, target (whom, and how)
whom to watch         roster: the config's targets, and those of discovery, target_groups; shards
watching              fleet: a poller a target, with fetch and canary; flight and tape (the recorder); logwatch
being looked at       web, page, views; listener, httpd, gate, webconfig
without a daemon      check and verdict, recording, replay
around all of it      daemon, cli and commands/, terminal, log (what we say), clock, reasons (of failed scrapes)
worlds of their own   logs/ (reading JSON logs), simulator/, review/
"""

__version__ = "0.1.0"
