"""What elements are.

::

    a leaf, a spec        spec.py, where to begin reading; dtypes.py; spec_json.py; leaf_names.py
    values                values.py, for ragged, sparse and nullable ones; tree.py; json_text.py
    a spec, compiled      schema.py takes elements apart
"""
