"""Stores of named objects, on a disk or in a bucket; the names of objects; local copies. No content is decoded."""
