"""The live view in a terminal: sources of engines, what is remembered, what keys do, how it is drawn."""
