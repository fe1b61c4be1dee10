"""What users call: ``Storage`` and its catalog, ``cacheable`` and ``open``.

These modules join ``builds``, ``access`` and ``versions``, which do the work.
"""
