"""A message about a hang is read back as it was written."""

import pytest

from tfparallel_trainer.contract import hangs


@pytest.mark.parametrize(
    "hang",
    [
        hangs.Hang("step 7", "never_comes (model.py:12) < generate (model.py:8)"),
        hangs.Hang("the call of training_data began", "<lambda> (a: b (2).py:1)"),
        hangs.Hang("batch 2 of the evaluation after step 7", "no call (unknown)"),
    ],
)
def test_a_hang_is_read_from_its_message(hang: hangs.Hang) -> None:
    message = hangs.describe(hang, 1800.4, "trainer.stepTimeoutSeconds")
    assert message.startswith(
        f"Nothing has ended for 1800 s (trainer.stepTimeoutSeconds) since {hang.after}: "
    )
    assert hangs.find(f"[worker-0] {message}The stacks stand above.") == hang


@pytest.mark.parametrize(
    "message",
    [
        "",
        "A rank did not take part in a collective.",
        "Nothing has ended for 9 s (trainer.stepTimeoutSeconds) since step 7: the stacks of all"
        " threads stand above. See whether another replica is stuck.",
    ],
)
def test_other_messages_describe_no_hang(message: str) -> None:
    assert hangs.find(message) is None
