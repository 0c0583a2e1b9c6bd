"""Room 5b: the search doorway, fast on the CPU. Steps in native code, where `malmoi doctor --build` made it."""
