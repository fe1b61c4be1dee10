"""Elements and their bytes: element specs, the codec, media, and which records and leaves a user means.

::

    what elements are      spec.py, spec_json.py, dtypes.py; values.py for ragged, sparse and nullable values;
                           schema.py compiles a spec and takes elements apart; leaf_names.py
    from what users have   infer.py, tree.py; conform.py and value_conversion.py fit their values to a spec;
                           json_text.py
    elements to records    layout.py, where to begin reading; leaf_codecs.py and composite_codecs.py; leaf_columns.py;
                           codec.py
    bytes of records       spans.py, frames.py, memory.py
    media                  media.py; video.py, video_index.py, video_codec.py; decoding_threads.py
    which records          selection.py; keys.py; leaf_rows.py compares two versions
    batches of functions   stacking.py
"""
