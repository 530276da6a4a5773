"""Tests of the product, layer by layer."""
