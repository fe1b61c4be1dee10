"""Versions as they are stored: manifests, the log that publishes them, and copy, diff, gc, verify and claims.

Nothing here makes records from a source, or hands records out.
"""
