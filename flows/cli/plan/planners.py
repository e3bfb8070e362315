"""`planners`: all planners, their demands and options.

Reading those options.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.cli.console import print_json, show, table
from flows.cli.registry import command
from flows.cli.shared_options import AsJson

if TYPE_CHECKING:
    from flows.planning.registry import Option, Planner


COLUMNS = ("planner", "objectives", "plans for", "margin")


@command("planners", "poolpipe planners")
def planners(*, as_json: AsJson = False) -> None:
    """List the planners and their options.

    Give the options to `plan` as they are listed here. The margin is the share of every SLO that a
    planner keeps free by default.
    """
    from flows.planning import registry

    found, products = registry.planners(), registry.product_planners()
    if as_json:
        documents = [_document(p, comparison=p.name not in products) for p in found.values()]
        print_json({"planners": documents})
        return
    for heading, wanted in (("Planners", True), ("Comparison planners, from papers", False)):
        rows = [
            (p.name, ", ".join(p.objectives), ", ".join(p.demands), f"{p.slo_margin:g}")
            for p in found.values()
            if (p.name in products) is wanted
        ]
        show(f"{heading}\n")
        show(table(COLUMNS, rows, texts=3))
        show("")
    for names, options in _shared(found.values()).items():
        show(f"Options of {', '.join(names)}:")
        for line in options:
            show(f"  {line}")
        show("")


def _shared(found: "Iterable[Planner]") -> dict[tuple[str, ...], list[str]]:
    """Options as they are shown, by the planners that take them in the same form."""
    takers: dict[str, list[str]] = {}
    for planner in found:
        for option in planner.options:
            default = "none" if option.default == "" else option.default
            line = f"{_spelled(option)}  {option.help} (default {default})"
            takers.setdefault(line, []).append(planner.name)
    shared: dict[tuple[str, ...], list[str]] = {}
    for line, names in takers.items():
        shared.setdefault(tuple(names), []).append(line)
    return shared


def own_options(planner: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Options of a planner from what is left of a command line: `--name VALUE`, `--name=VALUE`.

    A flag is `--name` or `--no-name`. Their ranges are the planner's to check.

    Raises:
        InputError: the planner has no such option, or the value is of another kind.
    """
    from flows.planning.registry import planner_named
    from triton_backend.contract.errors import InputError

    declared = {f"--{o.name.replace('_', '-')}": o for o in planner_named(planner).options}
    found: dict[str, Any] = {}
    left = list(arguments)
    while left:
        text, equals, value = left.pop(0).partition("=")
        refused = text.startswith("--no-") and text not in declared
        option = declared.get(f"--{text.removeprefix('--no-')}" if refused else text)
        if option is None or (refused and option.kind is not bool):
            raise InputError(text, _unknown(text, planner, declared))
        if option.kind is bool:
            if equals:
                raise InputError(text, f"takes no value, not {value!r}")
            found[option.name] = not refused
            continue
        if not equals:
            if not left:
                raise InputError(text, "needs a value")
            value = left.pop(0)
        found[option.name] = _value(text, option, value)
    return found


def _unknown(text: str, planner: str, declared: "Mapping[str, Option]") -> str:
    if not text.startswith("-"):
        return f"unexpected argument; `plan` takes options alone ({planner})"
    return f"no such option; planner {planner} takes {', '.join(declared) or 'none of its own'}"


def _value(text: str, option: "Option", value: str) -> Any:
    from triton_backend.contract.errors import InputError

    kinds = {int: "a whole number", float: "a number"}
    try:
        return option.kind(value)
    except ValueError as error:
        raise InputError(text, f"{value!r} is not {kinds[option.kind]}") from error


def _spelled(option: "Option") -> str:
    name = f"--{option.name.replace('_', '-')}"
    if option.kind is bool:
        return f"{name}/--no-{name.removeprefix('--')}"
    values = "|".join(map(str, option.choices)) or {int: "N", float: "X"}.get(option.kind, "TEXT")
    return f"{name} {values}"


def _document(planner: "Planner", *, comparison: bool) -> dict[str, Any]:
    return {
        "name": planner.name,
        "comparison": comparison,
        "objectives": list(planner.objectives),
        "demands": list(planner.demands),
        "slo_margin": planner.slo_margin,
        "options": [
            {"name": o.name, "kind": o.kind.__name__, "default": o.default, "help": o.help}
            | ({"choices": list(o.choices)} if o.choices else {})
            for o in planner.options
        ],
    }
