"""What a user's functions bind can be put back, so that a model can be built on the side."""

import pathlib
import types

from tfparallel_trainer import user

BOUND = 1
STATE = {"alpha": 1}
ALL = [1]
KEPT = types.SimpleNamespace(alpha=1)


def build_model() -> None:
    global BOUND
    BOUND = 2
    STATE["alpha"] = KEPT.alpha = 2
    ALL.append(2)


def test_what_a_function_binds_is_as_before() -> None:
    module = user.Module(pathlib.Path(__file__), {"build_model": build_model})
    with module.restored():
        module.build_model()
        assert (BOUND, STATE, ALL, KEPT.alpha) == (2, {"alpha": 2}, [1, 2], 2)
    assert (BOUND, STATE, ALL, KEPT.alpha) == (1, {"alpha": 1}, [1], 1)
