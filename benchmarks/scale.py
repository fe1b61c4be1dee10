"""A build and an epoch of 10^10 records, 100 TB, on 1,000 hosts, by arithmetic from costs that are measured here.

Run: ``python benchmarks/scale.py``; it takes some minutes. `scale_costs.py` measures; this page multiplies. Epochs in
blocks are not multiplied: `blocks_walk.py` walks parts of them, for some of the hosts.
"""

from __future__ import annotations

from blocks_walk import Dataset, walk
from harness import machine, table
from scale_costs import KINDS, RECORD_NBYTES, FixedCosts, KindCost, ManifestCost, fixed_costs, kind_cost, manifest_cost

from cachelayer.streams.order.blocks import Blocks, block_order

RECORDS = 10**10
HOSTS = 1_000
BATCH_A_HOST = 256
NBYTES = RECORDS * RECORD_NBYTES
SHARD_NBYTES = {"1 GB": 10**9, "256 MiB, the default": 1 << 28}
DISK_NBYTES = 2 * 10**12
# Numbers of hosts, and the sizes of their blocks.
WALKS = (
    (1, Blocks()),
    (8, Blocks()),
    (64, Blocks()),
    (1_000, Blocks()),
    (1_000, Blocks(lanes=8_192)),
    (1_000, Blocks(records=800, lanes=8_192)),
    (1_024, Blocks()),
)
WALKED_HOSTS = 16
# List prices of both GCS (class B, class A) and S3 (GET, PUT) in their standard classes, in dollars a request.
READ_PRICE, WRITE_PRICE = 0.4e-6, 5e-6


def size(nbytes: float) -> str:
    """Bytes, readable."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.3g} {unit}" if nbytes < 1e3 * factor else f"{nbytes / factor:,.0f} {unit}"
    return f"{nbytes:,.0f} B"


def count(number: float) -> str:
    """A large number, readable."""
    return f"{number:.2g}".replace("e+", "e") if number >= 1e6 else f"{number:,.0f}"


def shards_of(shard_nbytes: int) -> int:
    """How many shards hold all records: each counts 64 bytes more than it has."""
    return -(-RECORDS // (shard_nbytes // (RECORD_NBYTES + 64)))


def manifests() -> list[ManifestCost]:
    """From 10^3 shards to 4 * 10^5."""
    return [manifest_cost(shards) for shards in (10**3, 10**4, 10**5, 4 * 10**5)]


def show_manifests(costs: list[ManifestCost]) -> str:
    rows = [
        (f"{cost.shards:,}", size(cost.nbytes), f"{cost.opening_s:.3f} s", size(cost.memory_nbytes)) for cost in costs
    ]
    head = ("shards", "manifest", "processor time to open it: parsed, checked, digest", "memory")
    return table("Manifests, measured", head, rows)


def show_records(kinds: dict[str, KindCost]) -> str:
    rows = [
        ("building: processor time a record", *(f"{each.build_cpu_s * 1e6:.0f} us" for each in kinds.values())),
        ("the shard: bytes beside the record", *(f"{each.overhead_nbytes:.0f} B" for each in kinds.values())),
        ("the index: bytes a record", *(f"{each.index_nbytes:.0f} B" for each in kinds.values())),
        ("requests for a record far from others", *(f"{each.sparse_reads:.2f}" for each in kinds.values())),
        ("round trips of a batch of those", *(f"{each.sparse_trips:.1f}" for each in kinds.values())),
        ("round trips from nothing to a first batch", *(f"{each.opening_trips:.1f}" for each in kinds.values())),
    ]
    return table(f"Records of {size(RECORD_NBYTES)}, measured", ("what", *kinds), rows)


def show_epochs(kinds: dict[str, KindCost]) -> str:
    rows = [
        (kind, way, f"{traffic.reads:,}", size(traffic.received), f"{cpu * 1e6:.0f} us")
        for kind, each in kinds.items()
        for way, (traffic, cpu) in each.epochs.items()
    ]
    head = ("records of", "read by", "requests", "bytes that came", "processor time a record")
    return table("A shuffled epoch of 4,000 records in 10 shards, measured", head, rows)


def show_fixed(fixed: FixedCosts) -> str:
    rows = [
        ("state of a stream", f"{fixed.state_nbytes} B"),
        ("log entry of one version", f"{fixed.entry_nbytes} B"),
        ("note of a finished part of one shard", f"{fixed.note_nbytes} B"),
        ("requests that write, a shard of one piece", f"{fixed.writes_a_shard:.1f}"),
        ("memory a shard that was read by ranges, beside the manifest", size(fixed.memory_a_shard)),
        *((f"a local copy beside {files:,} others", f"{s * 1e6:.0f} us") for files, s in fixed.copy_s.items()),
        *(
            (f"order of {batch:,} of {count(RECORDS)} records", f"{s * 1e3:.2f} ms")
            for batch, s in fixed.order_s.items()
        ),
    ]
    return table("Everything else, measured", ("what", "cost"), rows)


def build(kind: KindCost, fixed: FixedCosts, shard_nbytes: int, manifest: ManifestCost) -> list[str]:
    """The lines of one simulated build."""
    shards = shards_of(shard_nbytes)
    pieces = -(-shard_nbytes // fixed.piece_nbytes)
    # A resumable upload is one request that begins it, and one a piece.
    writes = shards * (fixed.writes_a_shard + (pieces if pieces > 1 else 0))
    written = RECORDS * (RECORD_NBYTES + kind.overhead_nbytes + kind.index_nbytes)
    return [
        f"{shards:,}",
        size(manifest.nbytes * shards / manifest.shards),
        f"{manifest.opening_s * shards / manifest.shards:.2f} s",
        size(RECORDS * kind.index_nbytes),
        size(RECORDS * kind.overhead_nbytes),
        size(written / HOSTS),
        f"{kind.build_cpu_s * RECORDS / HOSTS / 3600:.1f} h",
        f"{count(writes)} ({writes * WRITE_PRICE:,.0f} $)",
        f"{shards:,} x {fixed.note_nbytes} B",
        "1",
        size(shards * (manifest.memory_nbytes / manifest.shards + fixed.memory_a_shard)),
    ]


BUILD_LINES = (
    "shards",
    "manifest, one run of names a shard",
    "processor time to open it",
    "all indices",
    "ArrayRecord beside the records",
    "bytes written by a host",
    "processor time of a host",
    "requests that write, price",
    "notes of finished parts until it is published",
    "log entries",
    "memory of a host that has touched every shard",
)


def epochs(kind: KindCost, fixed: FixedCosts, shard_nbytes: int) -> list[tuple[str, ...]]:
    """The simulated epochs: how it is read, and for it requests, price, bytes a host, disk a host."""
    shards, share = shards_of(shard_nbytes), NBYTES / HOSTS
    index_nbytes = RECORDS * kind.index_nbytes
    pieces = -(-shard_nbytes // fixed.piece_nbytes)
    index_requests = shards * max(1, index_nbytes / shards / fixed.piece_nbytes)
    by_ranges = RECORDS * kind.sparse_reads
    with_indices = RECORDS + HOSTS * index_requests
    kept = (DISK_NBYTES - index_nbytes) / (NBYTES + index_nbytes)
    limited = RECORDS * (1 - kept) + HOSTS * (index_requests + kept * shards * pieces)
    # Beside the pieces: a request for the size of the shard, and two for its index.
    own = shards * (pieces + 3)
    lines = [
        ("ranges, no disk", by_ranges, share + (kind.sparse_reads - 1) * 16 * RECORDS / HOSTS, 0.0),
        ("ranges, all indices on disk", with_indices, share + index_nbytes, index_nbytes),
        ("ranges, and copies on 2 TB", limited, share * (1 - kept) + DISK_NBYTES, DISK_NBYTES),
        ("copies of everything on every host", HOSTS * own, NBYTES + index_nbytes, NBYTES + index_nbytes),
        ("each host its own slice, copied", own, share + index_nbytes / HOSTS, share + index_nbytes / HOSTS),
    ]
    return [
        (
            way,
            count(requests),
            f"{requests * READ_PRICE:,.0f} $",
            f"{count(requests / 86_400)}/s",
            size(came),
            size(disk),
        )
        for way, requests, came, disk in lines
    ]


def blocks_epochs() -> list[tuple[str, ...]]:
    """The walked epochs in blocks of records of one size, in shards of 1 GB."""
    dataset, rows = Dataset(RECORDS, RECORD_NBYTES, 10**9), []
    for hosts, sizes in WALKS:
        order = block_order(sizes, RECORDS, RECORD_NBYTES, seed=1)
        epoch = walk(order, dataset, hosts, BATCH_A_HOST, WALKED_HOSTS)
        blocks = epoch.requests - epoch.index_requests
        rows.append(
            (
                f"{hosts:,}",
                f"{order.lanes:,}",
                size(order.block * RECORD_NBYTES),
                f"{count(epoch.requests)} ({epoch.requests * READ_PRICE:,.0f} $)",
                f"{count(blocks)} ({blocks * READ_PRICE:,.0f} $)",
                f"{count(epoch.requests / 86_400)}/s",
                f"{epoch.amplification:.2f}",
                size(epoch.indices),
                size(epoch.held),
            )
        )
    return rows


BLOCKS_HEAD = (
    "hosts",
    "lanes",
    "a block",
    "requests, price",
    "of those for records, price",
    "if it takes a day",
    "bytes read / wanted",
    "indices that come to a host",
    "memory of a host",
)


def main() -> None:
    """Print the tables."""
    costs = manifests()
    kinds = {kind: kind_cost(kind) for kind in KINDS}
    fixed = fixed_costs((BATCH_A_HOST, BATCH_A_HOST * HOSTS))
    print(f"Measured on {machine()}.\n")
    print(show_manifests(costs), show_records(kinds), show_epochs(kinds), show_fixed(fixed), sep="\n\n", end="\n\n")
    largest = costs[-1]
    built = [build(kinds["any size"], fixed, nbytes, largest) for nbytes in SHARD_NBYTES.values()]
    head = (
        f"simulated: {count(RECORDS)} records, {size(NBYTES)}, {HOSTS:,} hosts",
        *(f"shards of {n}" for n in SHARD_NBYTES),
    )
    print(table("A build", head, list(zip(BUILD_LINES, *built, strict=True))), end="\n\n")
    head = ("read by", "requests", "price", "if it takes a day", "bytes to a host", "disk of a host")
    for name, kind in kinds.items():
        print(table(f"An epoch of records of {name}, shards of 1 GB", head, epochs(kind, fixed, 10**9)), end="\n\n")
    print(table("An epoch in blocks of records of one size, shards of 1 GB", BLOCKS_HEAD, blocks_epochs()), end="\n\n")
    one = kinds["one size"].epochs
    cpu = {way: one[way][1] * RECORDS / HOSTS / 60 for way in ("ranges", "ranges, in blocks", "copies on disk")}
    shown = ", ".join(f"{way} {minutes:,.0f}" for way, minutes in cpu.items())
    print(f"Minutes of processor time of each of {HOSTS:,} hosts for an epoch: {shown}.")
    steps, shards = RECORDS // (BATCH_A_HOST * HOSTS), shards_of(10**9)
    copying = max(fixed.copy_s.values()) * shards
    print(f"{steps:,} steps an epoch; a host's part of the order of one: {fixed.order_s[BATCH_A_HOST] * 1e3:.2f} ms.")
    print(f"To copy {shards:,} indices takes {copying:.0f} s of processor time beside what their bytes take.")


if __name__ == "__main__":
    main()
