"""Rounds of operations, kills and faults until the time is over: ``-m soak --soak-minutes 30``."""

import random
import shutil
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from crash_child import LEASE_SECONDS
from faults import fault_proxy
from servers import Server, new_bucket
from soak_round import Place, Round


def place_in(server: Server, proxied: str) -> Place:
    return Place(server.url(new_bucket(server)), server.storage_options(), server.storage_options(proxied))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
# They erase, delete, append, derive, rewrite, add columns and copy.
@pytest.mark.parametrize("seed", [0, 8, 9])
def test_whatever_is_killed_in_one_round_all_that_is_published_is_whole(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))
    Round(seed, Place(str(tmp_path / "first")), Place(str(tmp_path / "second"))).run(tmp_path, None)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
@pytest.mark.parametrize("store", ["disk", "gcs", "s3", "azure"])
def test_whatever_is_killed_or_fails_all_that_is_published_is_whole(
    store: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))
    until = time.monotonic() + 60 * request.config.getoption("soak_minutes")
    given = request.config.getoption("soak_seed")
    seed = random.SystemRandom().getrandbits(32) if given is None else given
    with capfd.disabled():
        print(f"\n{store}: the first round has --soak-seed {seed}; each seed follows from the one before", flush=True)
    rounds = kills = faults = 0
    outcomes = Counter[str]()
    failed: list[str] = []
    with ExitStack() as stack:
        server: Server | None = None if store == "disk" else request.getfixturevalue(store)
        proxy = None if server is None else stack.enter_context(fault_proxy(server.endpoint))
        while rounds == 0 or time.monotonic() < until:
            folder = tmp_path / str(seed)
            folder.mkdir()
            first, second = Place(str(folder / "first")), Place(str(folder / "second"))
            if server is not None and proxy is not None:
                first = place_in(server, proxy.endpoint)
                second = place_in(server, proxy.endpoint) if seed % 2 else second
            drawn = Round(seed, first, second)
            try:
                kills += drawn.run(folder, proxy)
            except Exception:  # noqa: BLE001
                failed.append(f"{drawn} in {folder}:\n{traceback.format_exc()}")
            else:
                shutil.rmtree(folder)
            rounds += 1
            outcomes += drawn.outcomes
            if proxy is not None:
                faults += sum(exchange.fault != "" for exchange in proxy.exchanges())
                proxy.forget()
            seed = random.Random(seed).getrandbits(32)
    with capfd.disabled():
        print(f"\n{store}: {rounds} rounds, {kills} kills, {faults} faults, {len(failed)} rounds failed")
        print(f"{store}: calls of the children: {', '.join(f'{n} {what}' for what, n in outcomes.most_common())}")
    assert not failed, "\n\n".join([f"begin with a failed round: -k {store} --soak-seed SEED", *failed])
