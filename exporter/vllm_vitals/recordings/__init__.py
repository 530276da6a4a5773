"""Recordings of scrapes: the file format, replay, and the flight recorder that writes them."""
