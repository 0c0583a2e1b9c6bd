"""Room 4: logits to weights. Loss, optimiser and schedule, one step, the loop, resume."""
