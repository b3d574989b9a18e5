"""What is seldom used is loaded when somebody uses it, and is the same then."""

import contextlib
import gc
import importlib
import inspect
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tfparallel_trainer.loop import quick_start

PACKAGE = "late_package_of_the_test"
SELDOM = f"{PACKAGE}.seldom"
FILES = {
    "__init__.py": "from . import seldom as seldom",
    "seldom/__init__.py": "from . import part\nfrom .part import value as value\n",
    "seldom/part.py": "value = 7\n",
}


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A package, one part of which is seldom used."""
    for name, content in FILES.items():
        path = tmp_path / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(quick_start, "_SELDOM_USED", {SELDOM})
    yield tmp_path / PACKAGE
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]
    gc.unfreeze()


def is_loaded() -> bool:
    return f"{SELDOM}.part" in sys.modules


@pytest.mark.usefixtures("package")
def test_it_is_loaded_when_it_is_used() -> None:
    with quick_start.importing():
        imported = importlib.import_module(PACKAGE)
        assert not gc.isenabled()
    assert gc.isenabled()
    assert sys.modules[SELDOM] is imported.seldom
    inspect.getmodule(is_loaded)  # looks at all modules
    assert not is_loaded()
    assert imported.seldom.value == 7
    assert is_loaded()
    with pytest.raises(AttributeError):
        imported.seldom.other  # noqa: B018


@pytest.mark.usefixtures("package")
def test_many_threads_use_it_at_once() -> None:
    with quick_start.importing():
        imported = importlib.import_module(PACKAGE)
    start, values = threading.Barrier(8), []

    def use() -> None:
        start.wait(60)
        values.append(imported.seldom.value)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [7] * 8


def test_what_cannot_be_loaded_says_so_each_time(package: pathlib.Path) -> None:
    (package / "seldom" / "part.py").write_text("raise ImportError('it lacks a library')\n")
    with quick_start.importing():
        imported = importlib.import_module(PACKAGE)
    for _ in range(2):
        with pytest.raises(ImportError, match="lacks a library"):
            imported.seldom.value  # noqa: B018


SCRIPT = """
import sys
from tfparallel_trainer.loop import quick_start
with quick_start.importing():
    import keras
    from tfparallel_trainer.loop import run
assert not {"sklearn", "matplotlib"} & sys.modules.keys()
import sklearn.base
assert issubclass(keras.wrappers.SKLearnClassifier, sklearn.base.ClassifierMixin)
assert "matplotlib" not in sys.modules
assert keras.visualization.plot_image_gallery.__module__.startswith("keras.src.visualization")
assert "matplotlib" in sys.modules
"""


@pytest.mark.usefixtures("processes")
def test_keras_has_all_that_it_had() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, timeout=300)


def test_garbage_is_searched_rarely_until_the_first_step() -> None:
    usual = gc.get_threshold()
    with contextlib.ExitStack() as until_first_step:
        quick_start.collect_rarely(until_first_step)
        assert all(rare >= often for rare, often in zip(gc.get_threshold(), usual, strict=True))
        assert gc.get_threshold() != usual
    assert gc.get_threshold() == usual
