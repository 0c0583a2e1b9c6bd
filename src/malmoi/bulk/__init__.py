"""Corpora of any size, block by block, by several workers; every finished block is kept."""
