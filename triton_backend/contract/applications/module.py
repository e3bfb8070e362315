"""A node of an application, as asked for: a model that runs for every request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from triton_backend.contract.fields import Fields

REQUEST = "request"
"""The producer that stands for the client's request, as in `request.image`."""
MODULE_FIELDS = (
    "name",
    "model",
    "after",
    "rows_per_request",
    "max_rows",
    "max_rows_given",
    "optional",
    "inputs",
    "batch_building_rate_rps",
    "sizes",
    "size_of",
    "size_by",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One node of an application; checked with its application.

    Attributes:
        model: the model that it runs.
        after: the modules that it starts after; those that `inputs` read, where it is not given.
        rows_per_request: mean number of rows (samples) it runs per client request.
        max_rows: most rows of one request; None, to be refused, where it is not given beside other
            rows than one.
        max_rows_given: most rows that each of its samples gives where the run alone knows how many,
            as boxes of a detector; None where none vary, or where the modules that read them say so
            by their `max_rows`.
        optional: whether the answer may go without it.
        inputs: tensor of the model -> `request.tensor` or `module.tensor`; empty: not said, and an
            edge then moves no bytes that a plan would know of.
        batch_building_rate_rps: rate (rows/s) at which its batches are assumed to fill.
        size_of: the name by which others read it, where it is one of several sizes (`sizes`).
        size_by: `module.tensor` whose rows say by their shapes which size runs them.
    """

    name: str
    model: str
    after: tuple[str, ...] | None = None
    rows_per_request: float = 1.0
    max_rows: int | None = None
    max_rows_given: int | None = None
    optional: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    batch_building_rate_rps: float | None = None
    size_of: str | None = None
    size_by: str | None = None

    def __post_init__(self) -> None:
        if self.after is None:
            object.__setattr__(self, "after", self.producers)
        if self.max_rows is None and self.rows_per_request == 1:
            object.__setattr__(self, "max_rows", 1)

    @property
    def producers(self) -> tuple[str, ...]:
        """The modules whose tensors it reads, each once, in the order of `inputs`."""
        named = (source.partition(".")[0] for source in self.inputs.values())
        return tuple(name for name in dict.fromkeys(named) if name != REQUEST)

    @property
    def parents(self) -> tuple[str, ...]:
        """The modules that it starts after."""
        return self.after or ()

    @property
    def read_as(self) -> str:
        """The name by which others read it: of one of several sizes, that of them all."""
        return self.size_of or self.name

    @property
    def chooser(self) -> str | None:
        """Of one of several sizes, the module that says which rows it runs."""
        return None if self.size_by is None else self.size_by.partition(".")[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `workload.yaml`; what is as by default is left out."""
        out: dict[str, Any] = {"name": self.name, "model": self.model, "after": list(self.parents)}
        if self.rows_per_request != 1 or self.max_rows != 1:
            out |= {"rows_per_request": self.rows_per_request, "max_rows": self.max_rows}
        if self.max_rows_given is not None:
            out["max_rows_given"] = self.max_rows_given
        if self.optional:
            out["optional"] = True
        if self.inputs:
            out["inputs"] = dict(self.inputs)
        if self.batch_building_rate_rps is not None:
            out["batch_building_rate_rps"] = self.batch_building_rate_rps
        out |= {n: getattr(self, n) for n in ("size_of", "size_by") if getattr(self, n) is not None}
        return out

    @classmethod
    def read(cls, fields: Fields, application: str) -> Self:
        """Inverse of `to_dict`."""
        name = fields.text("name")
        fields = Fields(fields.plain(), f"application {application!r}, module {name!r}")
        check_known(fields, MODULE_FIELDS, "a module")
        alone = fields.has("max_rows") and not fields.has("rows_per_request")
        if alone and fields.integer("max_rows") != 1:
            raise fields.wrong("rows_per_request", "is missing beside max_rows")
        return cls(
            name=name,
            model=fields.text("model"),
            after=fields.texts("after") if fields.has("after") else None,
            rows_per_request=fields.number("rows_per_request")
            if fields.has("rows_per_request")
            else 1.0,
            max_rows=fields.integer("max_rows") if fields.has("max_rows") else None,
            max_rows_given=fields.integer("max_rows_given")
            if fields.has("max_rows_given")
            else None,
            optional=fields.has("optional") and fields.flag("optional"),
            inputs=read_bindings(fields, "inputs"),
            batch_building_rate_rps=fields.number("batch_building_rate_rps")
            if fields.has("batch_building_rate_rps")
            else None,
            size_of=fields.text("size_of") if fields.has("size_of") else None,
            size_by=fields.text("size_by") if fields.has("size_by") else None,
        )


def check_known(fields: Fields, known: Sequence[str], what: str) -> None:
    """Check that fields have no others than those known.

    Raises:
        InputError: one has.
    """
    for name in fields.plain():
        if name not in known:
            raise fields.wrong(str(name), f"is not known here; {what} has {', '.join(known)}")


def read_bindings(fields: Fields, name: str) -> dict[str, str]:
    """Names of tensors -> where they come from; none where the field is absent."""
    if not fields.has(name):
        return {}
    inner = fields.inner(name)
    return {tensor: inner.text(tensor) for tensor in fields.table(name)}
