"""From a version to records: reading by number, views, joins, local copies, verification.

Nothing here builds.
"""
