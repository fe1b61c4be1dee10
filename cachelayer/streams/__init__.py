"""Streams: a dataset in an order, cut into steps that shards share, with functions, reading ahead, and a state.

::

    stream            what users call;    iterator: its items, with a state;    epochwise: loops over its epochs
    stream_options    the arguments of ref.stream(), checked
      schedule        which positions a step has, which rows a shard, and which step is number t
      order/          which record has which place of an epoch: exact, blocks, buckets, weighted, mixture
    reading/          from steps to items: chunk_plan (rows), step_reader (records), elements (functions)
    ahead/            chunks and blocks that are read before anybody asks for them
    cursor            from chunk to chunk, with a position;    epochs: the next one;    stream_stats: what it waited for
    state             the position as JSON;    continuing: restored or advanced;    checkpoint: saved beside a model

Streams see records only through ``protocols.py``: nothing here knows files or storages.
"""
