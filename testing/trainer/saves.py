"""A model of which all is saved, and moments of a save at which its process ends for certain."""

import dataclasses
import pathlib
import signal

_TEXT = """
import os, resource, signal, sys
import keras, numpy

keras.config.set_floatx("float64")

def build_model():
    layers = [keras.layers.Dense(WIDTH, use_bias=False) for _ in range(8)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(1)])

def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")

def training_data():
    return numpy.eye(8, WIDTH), numpy.ones((8, 1))

# Python tells a hook of each file before it is opened, and before it gets another name.
def end(event, arguments):
    if event != os.environ["EVENT"] or not str(arguments[0]).endswith(os.environ["ENDING"]):
        return
    if not (limit := int(os.environ["LIMIT"])):
        os.kill(os.getpid(), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

if "EVENT" in os.environ:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(end)
"""
_WIDTH = 100
MODEL = _TEXT.replace("WIDTH", str(_WIDTH))
SLOW_MODEL = _TEXT.replace("WIDTH", "1000")
"""Its save takes a while."""
BYTES = 2 * 8 * 8 * _WIDTH**2
"""Of its eight large weights and their momentum."""
VARIABLES = 2 * 10 + 2
"""In a checkpoint: weights and momentum, the optimizer's iteration and learning rate."""

INDEX = "index.json"


def data(part: int = 0) -> str:
    """The file of a process's variables."""
    return f"part-{part:05}.bin"


def listing(part: int = 0) -> str:
    """The file that says what is in that of the variables."""
    return f"part-{part:05}.json"


@dataclasses.dataclass(frozen=True)
class Moment:
    """The moment of a save at which a process ends."""

    event: str
    """The process ends before this audit event of Python."""
    file: str = ""
    """The file of the checkpoint that the event names; empty for its folder."""
    limit: int = 0
    """The process ends when it has written that many bytes of the file instead, if not 0."""

    def of_step(self, step: int) -> dict[str, str]:
        """The environment of a process that trains the model and ends in the save of a step."""
        ending = f"-{step:010}/{self.file}".rstrip("/")
        return {"EVENT": self.event, "ENDING": ending, "LIMIT": str(self.limit)}

    @property
    def code(self) -> int:
        """How the process ends."""
        return -(signal.SIGXFSZ if self.limit else signal.SIGKILL)


def half(part: int = 0, parts: int = 1) -> Moment:
    """The moment when half of what a process writes of the variables is written."""
    return Moment("open", data(part), limit=BYTES // parts // 2)


def drafts(checkpoints: pathlib.Path) -> list[pathlib.Path]:
    """The folders of saves that have not come to their end."""
    return list(checkpoints.glob(".writing-*"))
