"""Elements and their bytes: the codec, media, and which records and leaves a user means.

::

    from what users have   infer.py; conform.py and value_conversion.py fit their values to a spec
    elements to records    layout.py, where to begin reading; leaf_columns.py; leaf_codecs.py and
                           composite_codecs.py; stored_leaves.py; codec.py
    bytes of records       spans.py, frames.py
    media                  media.py; video.py, video_index.py, video_codec.py; decoding_threads.py
    which records          selection.py; keys.py
    batches of functions   stacking.py
"""
