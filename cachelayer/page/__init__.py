"""A page in the browser that shows a storage: its versions, their records, the order of training, differences.

It only reads. Everything that it shows was stored by others, so the page treats it as hostile: see docs/security.md.
"""
