"""What vLLM exposes, from its own sources: `families` is the table, one row a quantity with its name in every release.

A rename in vLLM is one line there. `family` is the form of a row, `lookup` finds rows by name on the wire, `buckets`
has default bucket bounds, `cache_config` reads labels of ``cache_config_info``, `routes` the HTTP routes counted.
"""
