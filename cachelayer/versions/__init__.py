"""Versions as they are stored: manifests, the log that publishes them, and copy, diff, gc, verify and leases.

Nothing here makes records from a source, or hands records out.
"""

GRACE_SECONDS = 24 * 3600.0
"""How long files of deleted versions stay, unless a caller says otherwise."""
DEFAULT_SHARD_BYTES = 256 << 20
"""A shard ends with the record with which it has so many bytes."""
