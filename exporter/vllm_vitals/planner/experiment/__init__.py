"""A tuning experiment: a baseline, and whether one changed knob is really better."""
