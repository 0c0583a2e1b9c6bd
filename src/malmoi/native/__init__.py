"""Native code in C++: how it is built and found, and what of it training uses."""
