"""The replay gives the pages that were measured on the real library, without running it."""

from __future__ import annotations

from tests.real.cases import MORE, RECORDED, Case
from tests.real.prediction import predict
from tests.tables import each_row


@each_row("case", [case for case in RECORDED + MORE if case.recorded])
def test_recorded_pages(case: Case) -> None:
    predicted = predict(case, "0.3.13.post1")
    assert (predicted.pages_2m, predicted.pages_1g) == case.recorded
    assert bool(predicted.error) == bool(case.fails)
    assert (case.fails or "") in predicted.error
