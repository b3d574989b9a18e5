"""What a check says of itself, and what a job's status keeps of all checks."""

import pytest

from tfparallel_trainer.contract import limits, progress, verification

LOSS, GRADIENTS = verification.Quantity.LOSS, verification.Quantity.GRADIENTS


def check(step: int, *omitted: str, **differences: tuple[float, float]) -> verification.Check:
    compared = {
        verification.Quantity[name.upper()]: verification.Difference(*pair)
        for name, pair in differences.items()
    }
    return verification.Check(step, compared, omitted)


@pytest.mark.parametrize(
    ("checked", "sentence"),
    [
        (
            check(8, gradients=(3.1e-15, 1e-10), loss=(2e-16, 1e-10)),
            "Step 8 equals one process: loss 2e-16, gradients 3.1e-15 (limit 1e-10)",
        ),
        (
            check(1, "the metric auc, which no rank adds up", loss=(0, 1e-5), metrics=(0, 1e-3)),
            "Step 1 equals one process: loss 0 (limit 1e-05), metrics 0 (limit 0.001);"
            " not compared: the metric auc, which no rank adds up",
        ),
        (
            check(2, "the layer noise draws by tf.random"),
            "Step 2 is not compared: the layer noise draws by tf.random",
        ),
    ],
)
def test_a_check_says_what_it_compared(checked: verification.Check, sentence: str) -> None:
    assert checked.sentence == sentence


def test_a_status_keeps_the_largest_difference_of_all_checks() -> None:
    first = verification.Verification.with_check(
        None, check(1, "the optimizer state", loss=(2e-16, 1e-10), gradients=(5e-15, 1e-10))
    )
    assert first.sentence == (
        "Step 1 (1 check) equals one process: loss 2e-16, gradients 5e-15 (limit 1e-10);"
        " not compared: the optimizer state"
    )
    second = verification.Verification.with_check(
        first, check(2, loss=(4e-16, 1e-10), gradients=(1e-15, 1e-10), weights=(0, 1e-10))
    )
    assert second.sentence == (
        "Step 2 (2 checks) equals one process: loss 4e-16, gradients 5e-15, weights 0 (limit 1e-10)"
    )


def test_a_status_is_bounded_and_is_what_reports_may_hold() -> None:
    endless = check(10**30, *["\x1b[2J" + "層" * 500] * 50, loss=(1e300, 1e-300))
    kept = verification.Verification.with_check(None, endless)
    assert (kept.step, len(kept.omitted)) == (limits.MAX_COUNT, limits.MAX_OMISSIONS)
    report = progress.Report(step=1, verification=kept)
    assert progress.Report.model_validate_json(report.model_dump_json(by_alias=True)) == report
    everything = check(
        1,
        *["層" * 500] * 9,
        **{quantity.name.lower(): (1.2345e-300, 1.2345e-300) for quantity in verification.Quantity},
    )
    largest = verification.Verification.with_check(None, everything)
    assert len(largest.compared) == limits.MAX_QUANTITIES
    assert len(largest.model_dump_json(by_alias=True).encode()) < 3_000
