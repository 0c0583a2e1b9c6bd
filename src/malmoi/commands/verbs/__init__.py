"""The verbs of the command line: one file each, with the verb's function and its options."""
