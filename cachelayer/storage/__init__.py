"""What users call: ``Storage``, ``cacheable`` and ``open``. These modules join ``builds``, ``views`` and ``versions``.

::

    storage.py      the public methods: they check arguments, and parse names
    catalog.py      finds and opens versions
    builder.py      builds a version, or returns the one that exists; staleness.py says what differs from it
    growing.py      begins to build a version in the background, and reads it meanwhile
    add_columns.py, derive.py, erase.py, rewrite.py, cacheable.py       the method of this name
"""
