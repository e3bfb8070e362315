"""The one list of reasons for drops."""

import pytest

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.errors import InputError


def test_numbers_and_texts_stay_as_logs_and_frames_hold_them() -> None:
    assert {int(reason): reason.text for reason in DropReason} == {
        0: "deadline",
        1: "too_large",
        2: "cancelled",
        3: "worker_lost",
        4: "model_removed",
        5: "overload",
        6: "queue_full",
        7: "rows_differ",
        8: "expired",
        9: "failed",
        10: "begun_anew",
        11: "quota",
        12: "deadly",
    }


def test_every_reason_is_read_back_from_its_text() -> None:
    assert [DropReason.parse(reason.text) for reason in DropReason] == list(DropReason)


def test_a_text_that_is_no_reason_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="'DEADLINE' is none of deadline, too_large"):
        DropReason.parse("DEADLINE")
