"""The chain of an exception's causes."""

from tfparallel_trainer import errors


def test_causes_that_name_each_other_come_once() -> None:
    first, second = OSError("the write"), RuntimeError("the save")
    first.__cause__, second.__cause__ = second, first
    assert list(errors.causes(first)) == [first, second]


def test_what_an_exception_hides_is_no_cause() -> None:
    hiding = ValueError("shown")
    hiding.__context__, hiding.__suppress_context__ = KeyError("hidden"), True
    assert list(errors.causes(hiding)) == [hiding]
