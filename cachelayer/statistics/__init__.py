"""Statistics of the records of a version, in one pass: ranges, lengths, nulls and histograms of every leaf."""

from cachelayer.statistics.survey import LeafStats, LengthStats, Statistics, survey

__all__ = ["LeafStats", "LengthStats", "Statistics", "survey"]
