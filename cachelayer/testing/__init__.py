"""Test stores, sources, engines and frameworks of your own: subclass these classes in your tests.

Each class has the tests that the project holds its own implementations to. A subclass says how the thing to test is
made, and pytest runs the inherited tests.

=========================  ===================================  ==========================================
class                      tests                                a subclass has
=========================  ===================================  ==========================================
:class:`StoreTests`        where objects are stored             the fixture ``store``
:class:`SourceTests`       what ``storage.cache`` takes         ``source(count, folder)``, ``element(n)``
:class:`EngineTests`       what runs the parts of a build       the fixture ``engine``, ``program``
:class:`SinkTests`         a framework that takes a stream      ``sink(stream)``
:class:`LoopTests`         loops over epochs, with a state      ``loops(**order)``
=========================  ===================================  ==========================================

It needs pytest, which nothing else of the package does.
"""

from __future__ import annotations

from cachelayer.errors import MissingDependencyError

try:
    import pytest
except ImportError as error:
    raise MissingDependencyError("cachelayer.testing needs pytest: pip install pytest") from error

# A failure then shows the values that an assert compared, as in files of tests.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("engines", "loops", "sinks", "sources", "stores")))

from cachelayer.testing.engines import EngineTests, YieldingEngineTests
from cachelayer.testing.loops import LoopTests
from cachelayer.testing.sinks import ResumableSinkTests, SinkTests
from cachelayer.testing.sources import FailingSourceTests, SourceTests
from cachelayer.testing.stores import StoreTests

__all__ = [
    "EngineTests",
    "FailingSourceTests",
    "LoopTests",
    "ResumableSinkTests",
    "SinkTests",
    "SourceTests",
    "StoreTests",
    "YieldingEngineTests",
]
