"""Objects in a store: local disk, S3, GCS, fsspec; their names; the local cache. Nothing here knows what they hold."""
