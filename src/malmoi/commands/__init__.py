"""Composition roots, one file per verb: the only place that wires rooms together."""
