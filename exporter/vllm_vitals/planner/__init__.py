"""Capacity and tuning: the weekly review, snapshot, compare, what-if. Never imported by the daemon."""
