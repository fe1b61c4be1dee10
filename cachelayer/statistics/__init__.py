"""What the records of a version hold: ranges, lengths, nulls and histograms of every leaf, in one pass."""

from cachelayer.statistics.survey import LeafStats, LengthStats, Statistics, survey

__all__ = ["LeafStats", "LengthStats", "Statistics", "survey"]
