"""Documents of any length as rows of one length: windows, packs, padded records, batches from buckets; and series."""
