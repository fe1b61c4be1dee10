"""Streams of records: order, steps, shards, the user's functions, reading ahead, and state.

Streams see records only through ``protocols.py``: nothing here knows files or storages.
"""
