"""From a version to elements: records by number, in tables of shards, wherever the shards are.

::

    what a dataset answers    dataset.py, where to begin reading; origins.py
    a version                 table.py: groups of shards; version_records.py; version_lengths.py; column_rows.py
    where its shards are      remote_shards.py; local_copies.py; held_blocks.py
    a choice of numbers       dataset_view.py; field_values.py
    other datasets            growing_records.py; array_record_source.py
"""
