"""An HTTP service over finished models: two interfaces that programs know, and one of our own with a page."""
