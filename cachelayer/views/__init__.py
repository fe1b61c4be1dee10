"""What users hold: a reference to a version, and what they choose, join and mix of it.

::

    what a view offers    view.py, where to begin reading; dataref.py; wrap.py
    which records         where.py (with exact_values.py), sampling.py, split.py
    of several            joined.py; mix.py (with mixture_weights.py); row_diff.py

Nothing here makes versions: that is ``builds``.
"""
