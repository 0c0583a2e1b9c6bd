"""Room 2: ids to batches. Memory-mapped store, token-budget batches, an order that is a function of (seed, epoch)."""
