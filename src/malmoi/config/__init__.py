"""Settings: frozen tables, strict about names and values, with every default in one place."""
