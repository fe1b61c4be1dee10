"""Write ``docs/api.md``: the signature and the first line of every public name. On the site, the page has the details.

Run ``python docs/write_api.py`` after a change of a public signature or of the first line of its docstring.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from griffe import Parameter, ParameterKind
from public_names import ROOT, exported, is_documented, members

import cachelayer

PAGE = ROOT / "docs" / "api.md"
ROLE = re.compile(r":\w+:`~?(?:cachelayer\.)?([\w.]+)`")
WIDTH = 120
_KEYWORDS = (ParameterKind.keyword_only, ParameterKind.var_positional)


@dataclass(frozen=True)
class Group:
    """A part of the page."""

    title: str
    text: str
    names: str
    """Public names, below ``cachelayer``, in their order. In parentheses: values that users are given, not make."""

    def public_names(self) -> list[str]:
        return [f"cachelayer.{name.strip('()')}" for name in self.names.split()]

    def are_made(self) -> list[bool]:
        return [not name.startswith("(") for name in self.names.split()]


GROUPS = [
    Group(
        "Store and open",
        "A storage is a folder or a bucket; a dataset has versions, which never change.",
        "Storage open (SubmitOptions) sharded (Sharded)",
    ),
    Group(
        "What a storage tells",
        "",
        "(VersionInfo) (LogEvent) (UnpublishedBuild) (Collected) (Diff) (RowDiff) (ValueChange) (VerifyReport) "
        "(RepairReport) (DamagedObject)",
    ),
    Group(
        "Records by number",
        "`ref[i]`, `ref[a:b]` and `len(ref)` work as for a list. What chooses or arranges records is a `View` too, "
        "with the same methods.",
        "(View) (DataRef) (Mirrored) (Packed) (Padded) (Rolling) (Sources) (RecordSpan)",
    ),
    Group(
        "Join, weigh, wrap",
        "",
        "concat mix (Mixture) (Sampled) wrap ArrayRecordDataSource",
    ),
    Group(
        "Streams",
        "`ref.stream(...)` is a sequence of batches or elements: `len(stream)`, `stream[step]`, `iter(stream)`.",
        "(Stream) (BatchStream) (StreamIterator) (Epochs) Blocks Buckets (Failure) (StreamStats) "
        "(ReadingStats) counters",
    ),
    Group(
        "Specs of elements",
        "A spec says which dtype and shape each leaf of an element has.",
        "ArraySpec RaggedSpec SparseSpec ImageSpec AudioSpec VideoSpec JsonSpec NullableDict",
    ),
    Group(
        "Values in batches",
        "Most leaves of a batch are arrays. Leaves that numpy has no array for are one of these.",
        "Ragged Sparse Nullable (Video)",
    ),
    Group(
        "Into frameworks",
        "Records and streams as a framework takes them.",
        "adapters.torch.loader (adapters.torch.Loader) adapters.torch.to_torch adapters.torch.Sampler "
        "adapters.torch.BatchSampler adapters.torch.tensors adapters.torchtitan.TokenDataLoader "
        "adapters.jax.global_batches (adapters.jax.GlobalBatches) (adapters.jax.GlobalBatchIterator) "
        "adapters.jax.shard_by_process adapters.orbax.CheckpointSave adapters.orbax.CheckpointRestore "
        "adapters.grain.Sampler adapters.grain.iter_dataset adapters.tensorflow.to_tf adapters.keras.to_keras "
        "(adapters.keras.StreamDataset) adapters.keras.Resume adapters.huggingface.to_datasets "
        "adapters.pyarrow.to_arrow adapters.pandas.to_pandas adapters.polars.to_polars",
    ),
    Group(
        "Files as sources",
        "Each returns a source for `storage.cache`, which also takes the paths themselves.",
        "adapters.pyarrow.from_parquet adapters.pyarrow.from_ipc adapters.pyarrow.from_csv adapters.pyarrow.from_json "
        "adapters.tfrecord.from_tfrecord adapters.webdataset.from_webdataset adapters.npy.from_npy "
        "adapters.npy.from_npz adapters.folders.from_files adapters.folders.from_image_folder "
        "adapters.folders.from_audio_folder",
    ),
    Group(
        "Objects of frameworks as sources",
        "`storage.cache` calls these itself for an object of a framework that is imported.",
        "adapters.torch.as_source adapters.tensorflow.as_source adapters.tfds.as_source adapters.keras.as_source "
        "adapters.grain.as_source adapters.huggingface.as_source adapters.pyarrow.as_source adapters.pandas.as_source "
        "adapters.polars.as_source",
    ),
    Group(
        "Engines",
        "An engine runs the parts of a build: see [Build faster](howto-builds.md#ray-and-apache-beam).",
        "(engines.Engine) engines.Processes engines.Ray engines.Beam",
    ),
    Group(
        "Tests of what you write",
        "Suites to subclass, for a store, a source, an engine or a framework of your own. They need pytest.",
        "testing.StoreTests testing.SourceTests testing.FailingSourceTests testing.EngineTests "
        "testing.YieldingEngineTests testing.SinkTests testing.ResumableSinkTests testing.LoopTests",
    ),
]
TITLE = """# API reference

Every public name, as `import cachelayer` provides it. Names that are not listed here are not public.
"""


def errors() -> str:
    """Return the tree of errors, as their module shows it."""
    docstring = ast.get_docstring(ast.parse((ROOT / "cachelayer" / "errors.py").read_text())) or ""
    head, _, rest = docstring.partition("::\n\n")
    tree, _, after = rest.partition("\n\nEach ")
    return f"## Errors\n\n{head.strip()}\n\n```text\n{textwrap.dedent(tree)}\n```\n\nEach {after}\n"


def documented() -> set[str]:
    """Return the names that the page has."""
    in_errors = {name for name in re.findall(r"\w+(?:Error|Warning)\b", errors()) if not hasattr(builtins, name)}
    return {name for group in GROUPS for name in group.public_names()} | {f"cachelayer.{name}" for name in in_errors}


def first_line(obj: Any) -> str:
    text = ROLE.sub(r"`\1`", obj.docstring.value.partition("\n\n")[0]).replace("\n", " ")
    return text.replace("``", "`")


def _parameter(parameter: Parameter) -> str:
    marks = {ParameterKind.var_positional: "*", ParameterKind.var_keyword: "**"}
    default = "" if parameter.default is None or parameter.kind in marks else f"={parameter.default}"
    return f"{marks.get(parameter.kind, '')}{parameter.name}{default}"


def signature(name: str, obj: Any) -> str:
    """Return the call of a function or a class, without types."""
    if obj.is_class and "dataclass" in obj.labels and not obj.path.startswith("cachelayer.adapters."):
        return f"{name}{_signature_of_dataclass(getattr(cachelayer, name))}"
    texts: list[str] = []
    parameters = [each for each in obj.parameters if each.name not in ("self", "cls")]
    for place, parameter in enumerate(parameters):
        before = parameters[place - 1].kind if place else None
        if parameter.kind is ParameterKind.keyword_only and before not in _KEYWORDS:
            texts.append("*")
        texts.append(_parameter(parameter))
        follows = parameters[place + 1].kind if place + 1 < len(parameters) else None
        if parameter.kind is ParameterKind.positional_only and follows is not ParameterKind.positional_only:
            texts.append("/")
    # What a container holds is seldom said by its type.
    kind = re.sub(r"\[(Any|T)\]", "", str(obj.returns)) if obj.is_function else "None"
    returns = "" if kind == "None" else f" -> {kind}"
    return f"{name}({', '.join(texts)}){returns}"


def _signature_of_dataclass(cls: type) -> inspect.Signature:
    """Return the signature without types; griffe does not see which fields a dataclass sets itself."""
    given = inspect.signature(cls).parameters.values()
    return inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in given])


def fields(cls: Any) -> list[str]:
    """Return the names of the public fields of a dataclass, a named tuple or a typed dict."""
    has_fields = any(str(base).endswith(("NamedTuple", "TypedDict")) for base in cls.bases)
    if "dataclass" not in cls.labels and not has_fields:
        return []
    own = [member for name, member in cls.members.items() if not name.startswith("_")]
    return [member.name for member in own if member.is_attribute and not is_documented(member)]


def bases(cls: Any) -> list[str]:
    """Return the public classes that a class is one of, by their public names."""
    public = {obj.path: name for name, obj in exported().items()}
    return [public[base.path] for base in cls.mro() if base.path in public]


def own_members(cls: Any) -> dict[str, Any]:
    """Return the methods and properties that stand with a class: none of a public base."""
    inherited = {base for name in bases(cls) for base in members(exported()[name])}
    return {name: member for name, member in members(cls).items() if name not in inherited}


def filled(text: str, first: str = "", later: str = "") -> str:
    """Return a text in lines that are not too long."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def of_member(name: str, member: Any) -> str:
    shown = signature(name, member) if member.is_function and not _is_property(member) else name
    return filled(f"`{shown}`: {first_line(member)}", "- ", "  ")


def _is_property(member: Any) -> bool:
    return any(str(decorator.value).endswith("property") for decorator in member.decorators)


def entry(name: str, *, is_made: bool) -> str:
    """Return what the page says of a name."""
    obj = exported()[name]
    short = name.removeprefix("cachelayer.")
    paragraphs = [f"### {short}"]
    if is_made and not short.startswith("testing."):
        paragraphs.append(filled(f"`{signature(short.rpartition('.')[2], obj)}`"))
    paragraphs.append(filled(first_line(obj)))
    if obj.is_class:
        paragraphs += of_class(obj, is_made=is_made)
    return "\n\n".join(paragraphs)


def of_class(cls: Any, *, is_made: bool) -> list[str]:
    """Return paragraphs that say what a class has."""
    paragraphs = [f"It has all that `{base.removeprefix('cachelayer.')}` has." for base in bases(cls)[:1]]
    if fields(cls) and not is_made:
        paragraphs.append(filled(f"Fields: {', '.join(f'`{field}`' for field in fields(cls))}."))
    items = [of_member(name, member) for name, member in own_members(cls).items()]
    return [*paragraphs, "\n".join(items)] if items else paragraphs


def text() -> str:
    """Return the page as a file. Functions stand in one list if a group has nothing else."""
    parts = [TITLE]
    for group in GROUPS:
        parts.append(f"## {group.title}\n\n{filled(group.text)}\n" if group.text else f"## {group.title}\n")
        functions = [name for name in group.public_names() if exported()[name].is_function]
        if functions == group.public_names():
            items = [of_member(name.removeprefix("cachelayer."), exported()[name]) for name in functions]
            parts.append("\n".join(items) + "\n")
            continue
        for name, is_made in zip(group.public_names(), group.are_made(), strict=True):
            parts.append(entry(name, is_made=is_made) + "\n")
    return "\n".join([*parts, errors()])


def directives() -> str:
    """Return the page of the site, for which mkdocstrings writes whole docstrings."""
    parts = [TITLE]
    for group in GROUPS:
        parts.append(f"## {group.title}\n\n{group.text}\n")
        for name in group.public_names():
            obj = exported()[name]
            shown = [*fields(obj), *own_members(obj)] if obj.is_class else []
            # Without names, mkdocstrings shows all that is inherited, private names too.
            listed = f"members: [{', '.join(shown)}]" if shown else "members: false, inherited_members: false"
            options = f"    options: {{{listed}}}\n" if obj.is_class else ""
            parts.append(f"::: {name}\n{options}")
    return "\n".join([*parts, "## Errors\n\n::: cachelayer.errors\n"])


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the page when the site is built; mkdocs calls this."""
    return directives() if page.file.src_uri == PAGE.name else markdown


if __name__ == "__main__":
    PAGE.write_text(text())
