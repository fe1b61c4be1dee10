"""From a source to a version: elements in; shards written, put and published. Nothing here reads versions for users.

::

    what is asked for     build_options.py, recipe.py (with source_identity.py)
    what is decided       build_plan.py
    sources               as_source.py makes a Source (source.py) of what the user passes: array_source.py,
                          unbatched_source.py, sharded_source.py, source_files.py and the adapters;
                          column_sources.py for columns that are added
    batches to records    batches.py, element_batches.py, element_specs.py, encode.py
    records to shards     parts.py, part_builds.py, shard_pipeline.py
    who builds which      part_builds.py; hosts.py
    shards to a version   build_version.py, where to begin reading; extensions.py
    read meanwhile        background.py, source_records.py
    the way back          erase.py
"""
