"""Values that cross pandas."""

from __future__ import annotations

from values_across import Row, ValuesAcross

from cachelayer.adapters.pandas import to_pandas


class TestPandas(ValuesAcross):
    row = Row("pandas", out=to_pandas)
