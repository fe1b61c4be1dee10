"""Bytes under names: where they are kept, and what the names are."""
