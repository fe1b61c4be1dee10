"""The sequential layer: in which order records come, for which shard, from which position."""
