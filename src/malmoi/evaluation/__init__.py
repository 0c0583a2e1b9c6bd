"""Texts to numbers: metrics with signatures, comparison with significance."""
