"""Models that carry state from one request to the next, refused with the reason.

Samples of a batch come from any client and stand alone, so that nothing of one request may enter
the next. Such a model shows by an input and an output of the same form, where the input begins a
recurrent layer or both are called so (`state` in and `stateN` out, `past...` in and `present...`
out).
"""

import re

import onnx

from flows.preparation.splitting.graph import input_names, subgraphs
from triton_backend.contract.errors import InputError

# Slots of the states that a recurrent layer begins with.
STATE_SLOTS = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
STATE_WORDS = ("state", "hidden", "cache")
NEXT = re.compile(r"[_.]?(n|new|next|out|output)", re.IGNORECASE)
# These pass a state on, or a part of it.
PASSING = frozenset(
    {"Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose"}
    | {"Unsqueeze"}
)


def refuse_state(graph: onnx.GraphProto, where: str) -> None:
    """Refuse a model that takes and gives state.

    Raises:
        InputError: it does; with the tensors and what to do.
    """
    inputs = set(input_names(graph))
    for value in graph.input:
        if value.name not in inputs:
            continue
        matching = [o.name for o in graph.output if _same_form(value, o)]
        named = [o for o in matching if _called_alike(value.name, o)]
        if named or (matching and _begins_recurrence(graph, {value.name})):
            given = (named or matching)[0]
            raise InputError(
                f"{where}, input {value.name!r}",
                f"is state that a request gives the next (output {given!r}); samples are served"
                " each alone: export the model over the whole sequence, its state inside and zero"
                " at the start",
            )


def _begins_recurrence(graph: onnx.GraphProto, carried: set[str]) -> bool:
    """A state enters a recurrent layer; `carried` holds its names so far, and grows."""
    for node in graph.node:
        slots = STATE_SLOTS.get(node.op_type, ())
        if any(slot < len(node.input) and node.input[slot] in carried for slot in slots):
            return True
        passes = node.op_type in PASSING and not carried.isdisjoint(node.input)
        for branch in subgraphs(node):
            if _begins_recurrence(branch, carried):
                return True
            passes = passes or any(output.name in carried for output in branch.output)
        if passes:
            carried |= {made for made in node.output if made}
    return False


def _called_alike(taken: str, given: str) -> bool:
    """Names of one state before and after, as exporters write them."""
    kept = taken.replace("past_key_values", "past").replace("past", "present", 1)
    stateful = any(word in taken.lower() for word in STATE_WORDS) and given.startswith(taken)
    return ("past" in taken and given == kept) or (
        stateful and NEXT.fullmatch(given, len(taken)) is not None
    )


def _same_form(value: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> bool:
    """Element type and rank agree, and no two known sizes differ."""
    one, two = value.type.tensor_type, other.type.tensor_type
    if one.elem_type != two.elem_type or len(one.shape.dim) != len(two.shape.dim):
        return False
    pairs = zip(one.shape.dim, two.shape.dim, strict=True)
    return all(a.dim_value == b.dim_value for a, b in pairs if a.dim_value and b.dim_value)
