"""Plans that may follow another; the change itself is in the tests of running systems."""

from dataclasses import replace

import pytest

from flows.release.rollout.change import check_tensors
from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from triton_backend.contract.errors import InputError

GIVEN = (tensor("image", 3, 16), tensor("mask", 4, dtype="UINT8"))
ANSWER = (tensor("boxes", 4), tensor("scores", 10))


def test_clients_know_tensors_by_name_whatever_their_order() -> None:
    one = model("m", (stage((0, 10), "FAST", 0),), inputs=GIVEN, outputs=ANSWER)
    served = one.model
    turned = one.replaced(inputs=GIVEN[::-1], outputs=ANSWER[::-1])
    check_tensors(served, plan(turned))
    check_tensors(served, plan(one.replaced(name="another", outputs=ANSWER[:1])))
    wider = (replace(ANSWER[0], shape=(-1, 5)), ANSWER[1])
    for other in (ANSWER[:1], (*ANSWER, tensor("more", 1)), wider):
        with pytest.raises(InputError, match="model 'm': has other inputs or outputs"):
            check_tensors(served, plan(one.replaced(outputs=other)))
