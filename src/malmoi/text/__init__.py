"""Room 1: text to ids and back. Corpus readers, cleaning with counted reasons, tokenisers."""
