"""Room 8: a finished model to a folder that other programs run; a file per format, and the proof of a copy."""
