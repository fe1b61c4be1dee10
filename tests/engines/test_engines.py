"""Engines that run here: processes, and Beam's runner in this process. Ray has a file of its own."""

import sys
from pathlib import Path

import pytest
from parts_child import PARTS, SHARD_BYTES, rows

import cachelayer
from cachelayer.engines import Beam, Engine, Processes, Ray, engine_of
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError, SourceError
from cachelayer.testing import EngineTests, YieldingEngineTests

pytestmark = pytest.mark.slow


class TestProcesses(YieldingEngineTests):
    program = "from cachelayer.engines import Processes; engine = Processes(2)"
    most_ahead = 2

    @pytest.fixture
    def engine(self) -> Engine:
        return Processes(2)


@pytest.mark.soak
class TestBeam(EngineTests):
    program = "from cachelayer.engines import Beam; engine = Beam()"
    yields_results = False

    @pytest.fixture
    def engine(self) -> Engine:
        return Beam()

    def test_a_runner_elsewhere_tells_the_reason_in_its_text(self) -> None:
        from apache_beam.options.pipeline_options import PipelineOptions

        def task(number: int) -> None:
            raise OSError("the disk went away")

        options = ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"]
        with pytest.raises(SourceError, match=r"(?s)the pipeline failed: .*task 0 failed: OSError: the disk went away"):
            list(Beam(PipelineOptions(options)).run(task, [0]))


# What older Beam imports warns of what newer packages call otherwise.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.needs("apache_beam")
def test_a_build_by_beam_is_the_same(tmp_path: Path) -> None:
    source = cachelayer.sharded(rows, PARTS)
    refs = [
        cachelayer.Storage(tmp_path / str(engine)).submit(source, "d@v1", shard_bytes=SHARD_BYTES, engine=engine)
        for engine in (None, "beam")
    ]
    assert refs[0].digest == refs[1].digest


def test_an_engine_has_a_name_or_is_one() -> None:
    for engine, kind in (("processes", Processes), ("ray", Ray), ("beam", Beam), (Beam(), Beam)):
        assert isinstance(engine_of(engine, 2), kind)
    for wrong in ("spark", "", 3, object(), Processes):
        with pytest.raises(InvalidArgumentError, match="'processes'"):
            engine_of(wrong, 2)
    for workers in (0, 1.5):
        with pytest.raises((InvalidArgumentError, InvalidTypeError), match="workers"):
            Processes(workers)  # type: ignore[arg-type]


@pytest.mark.parametrize(("engine", "package", "extra"), [(Ray(), "ray", "ray"), (Beam(), "apache_beam", "beam")])
def test_an_engine_that_is_not_installed_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"cachelayer\[{extra}\]"):
        list(engine.run(abs, [0]))
