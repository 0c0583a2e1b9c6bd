"""The contestants of `benchmarks/train.py`, one file each, and what a turn of theirs needs."""
