"""The command ``show``: everything about one version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.tree import Tree as RichTree

from cachelayer.access.dataref import DataRef
from cachelayer.cli.addresses import Address, LocalCache, Options, ReferenceArgument, open_storage
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count, facts, table
from cachelayer.drawing.quantities import size
from cachelayer.json_values import flattened
from cachelayer.provenance.environment import OF_COMPARISONS
from cachelayer.records import spec_json, tree
from cachelayer.records.spec import EncodedSpec, LeafSpec
from cachelayer.versions.manifest import Manifest

_SHARDS_SHOWN = 10


@command(
    "cachelayer show gs://bucket/caches/cifar10",
    "cachelayer show cache/cifar10@v2",
    "cachelayer show cache/cifar10@sha256:3fcda2 --json | jq .provenance",
)
def show(reference: ReferenceArgument, option: Options = None, local_cache: LocalCache = None) -> Answer:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    address = Address.parse(reference)
    storage = open_storage(address.url, option, local_cache)
    whole = storage.fetch(address.name)
    ref = whole if address.rows is None else whole[address.rows]
    tags = sorted(tag for tag, version in storage.tags(ref.dataset_id).items() if version == ref.dataset_version)
    return Answer(_document(ref, tags), _shown(ref, tags))


def _document(ref: DataRef[Any], tags: list[str]) -> dict[str, Any]:
    manifest = ref._base.version.manifest
    return {
        "reference": ref.reference,
        "dataset_id": ref.dataset_id,
        "version": ref.dataset_version,
        "tags": tags,
        "digest": ref.digest,
        "records": len(ref),
        "nbytes": ref.nbytes,
        "codec": manifest.codec,
        "element_spec": spec_json.to_json(ref.element_spec),
        "shards": [{"name": shard.name, **asdict(shard.stats)} for shard in manifest.shards],
        "provenance": ref.provenance,
    }


def _shown(ref: DataRef[Any], tags: list[str]) -> list[RenderableType]:
    manifest = ref._base.version.manifest
    rows = [
        ("dataset", ref.dataset_id),
        ("version", ref.dataset_version),
        ("tags", ", ".join(tags) or "none"),
        ("records", _records(ref)),
        ("size", f"{size(ref.nbytes)} in {count(len(manifest.shards), 'shard')}"),
        ("codec", manifest.codec),
        ("digest", f"sha256:{ref.digest}"),
        ("reference", ref.reference),
    ]
    return [facts(rows), "", spec_tree(ref.raw().element_spec), "", _shards(manifest), "", _provenance(ref.provenance)]


def _records(ref: DataRef[Any]) -> str:
    stored = ref._base.version.manifest.shard_records
    return count(len(ref)) if len(ref) == stored else f"{count(len(ref))} of {count(stored)} in the shards"


def spec_tree(spec: Any) -> RichTree:
    """Draw an element spec as a tree."""
    root = RichTree(_label("element", spec))
    _grow(root, spec)
    return root


def _grow(branch: RichTree, spec: Any) -> None:
    if spec is None or isinstance(spec, LeafSpec):
        return
    for step, child in tree.children(spec):
        name = step[2:-2] if step.startswith(("['", '["')) else step
        _grow(branch.add(_label(name, child)), child)


def _label(name: str, spec: Any) -> str:
    if spec is None or isinstance(spec, LeafSpec):
        decoded = f", decoded to {spec.decoded!r}" if isinstance(spec, EncodedSpec) else ""
        return f"{name}: {spec!r}{decoded}"
    kind = type(spec).__name__ if tree.is_namedtuple(spec) else type(spec).__name__.lower()
    return f"{name}: {kind}"


def _shards(manifest: Manifest) -> RenderableType:
    shown = table("shard", "records", "size", "sha256 of the records", right=("records", "size"))
    for shard in manifest.shards[:_SHARDS_SHOWN]:
        stats = shard.stats
        shown.add_row(shard.name, count(stats.records), size(stats.nbytes), stats.sha256[:12])
    more = len(manifest.shards) - _SHARDS_SHOWN
    if more > 0:
        shown.add_row(f"and {count(more)} more: --json shows all")
    return shown


def _provenance(provenance: Mapping[str, Any]) -> RenderableType:
    shown = {name: value for name, value in provenance.items() if name not in OF_COMPARISONS}
    return facts((name, _text(value)) for name, value in shown.items() if value not in (None, {}, []))


def _text(value: Any) -> str:
    """Format a value. A dict has a line for each key, with dots in the keys of nested dicts."""
    if isinstance(value, dict):
        return "\n".join(f"{name} = {_text(item)}" for name, item in flattened(value) if item != {})
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
