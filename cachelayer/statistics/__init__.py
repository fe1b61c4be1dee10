"""Statistics of the records of a version, in one pass: ranges, lengths, nulls and histograms of every leaf.

::

    batch of records ──unpack──> values, lengths and nulls of a leaf ──> Statistics      survey.py
                                   NumberSummary, StringSummary          numbers.py
    Statistics ──> bars and words, in text and in HTML                   shown.py
"""

from cachelayer.statistics.numbers import NumberStats
from cachelayer.statistics.shown import LeafStats, LengthStats, Statistics
from cachelayer.statistics.survey import count_by, survey

__all__ = ["LeafStats", "LengthStats", "NumberStats", "Statistics", "count_by", "survey"]
