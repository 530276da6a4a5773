"""The report's pictures: each an SVG with units on its axes, and a sentence that says what to see in it."""
