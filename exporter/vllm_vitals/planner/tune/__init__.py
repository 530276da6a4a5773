"""A tuning session: one knob at a time, each proven by runs before, with and after it (A, B, A)."""
