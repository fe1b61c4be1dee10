"""Values that cross Polars."""

from __future__ import annotations

from values_across import Row, ValuesAcross

from cachelayer.adapters.polars import to_polars


class TestPolars(ValuesAcross):
    row = Row("polars", out=to_polars)
