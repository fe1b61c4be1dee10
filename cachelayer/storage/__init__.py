"""What users call: Storage, its catalog, cacheable and open.

It joins builds and access, and does the work of neither.
"""
