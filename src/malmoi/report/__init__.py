"""Pages and plots from results alone; needs no model."""
