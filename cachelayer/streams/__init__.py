"""In which order records come, for which shard, from which position.

Streams see records only through the protocols of the ground floor.
"""
