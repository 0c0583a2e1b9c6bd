"""malmoi: sequence-to-sequence models from pairs of text."""
