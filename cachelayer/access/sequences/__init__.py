"""Documents of any length as rows of one length: windows, packs, padded records, and batches from buckets of lengths.

Other views, of records as they are, lie one package up.
"""
