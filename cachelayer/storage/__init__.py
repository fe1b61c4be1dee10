"""What users call: ``Storage``, ``cacheable`` and ``open``. These modules join ``builds``, ``views`` and ``versions``.

::

    storage.py      the public methods: they check arguments, and parse names
    catalog.py      finds and opens versions
    builder.py      builds a version, here or in the background, or returns the one that exists; staleness.py says
                    what differs from it
    add_columns.py, derive.py, erase.py, rewrite.py, cacheable.py       the method of this name
"""
