"""Servers that `benchmarks/serve.py` asks, and the clients that ask them."""
