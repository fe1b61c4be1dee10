"""ArrayRecord files: layout, index, writing, and reading by maps or ranges. Nothing here knows versions.

::

    what files are       index.py, where to begin reading; lengths.py; riegeli.py, compression.py, varints.py
    written              writer.py
    read                 local_shards.py with mapping.py; ranged.py, records_without_files.py; file.py, files of others
"""
