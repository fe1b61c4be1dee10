"""Read the records of versions: by number, in views, splits, concatenations and mixtures, and from local copies.

Nothing here makes versions: that is ``builds``.
"""
