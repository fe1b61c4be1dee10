"""From a source to shards."""
