"""Statistics of the records of a version, in one pass: ranges, lengths, nulls and histograms of every leaf."""

from cachelayer.statistics.numbers import NumberStats
from cachelayer.statistics.survey import LeafStats, LengthStats, Statistics, Survey, count_by, survey

__all__ = ["LeafStats", "LengthStats", "NumberStats", "Statistics", "Survey", "count_by", "survey"]
