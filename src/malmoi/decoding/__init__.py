"""Room 5: scorer to hypotheses. Rules, constraints, beam search, sampling, forced scoring."""
