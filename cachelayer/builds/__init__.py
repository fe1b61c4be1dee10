"""From a source to a version: elements in; shards written, uploaded and published.

Nothing here reads a version for users.
"""
