"""The random-access layer: records by number."""
