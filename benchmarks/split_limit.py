"""A model that one process may not hold trains when it is split, under the same limit of memory.

The limit is RLIMIT_DATA, which counts all memory that a process takes for itself, its threads'
stacks among it; these are made small. What a process needs besides the model is told by a run with
a small one.
"""

import dataclasses
import pathlib
import tempfile
import time

from benchmarks import processes, results
from testing.trainer import launch

_STEPS = 3
_SPLITS = (2, 4)
_STACK_BYTES = 1 << 20
_PLAIN = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Memory is taken when it is needed and given back: TensorFlow's own pool takes much in advance."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Ended:
    """How processes ended, and the most that one of them took."""

    codes: tuple[int, ...]
    data_bytes: int
    """In bytes."""


def measure(size: results.Size) -> list[results.Result]:
    """Run it whole and split."""
    base = _run(dataclasses.replace(size, megabytes=1), max(_SPLITS), None).data_bytes
    limit = base + 7 * (size.megabytes << 20) // 4  # weights and gradients alone are 8 quarters
    whole = _run(size, 1, limit)
    measured = []
    for count in _SPLITS:
        ended = _run(size, count, limit)
        survived = sum(code == 0 for code in ended.codes)
        measured.append(
            results.Result(
                what=f"processes of {count} that train {size.megabytes / 1024:.3g} GiB of weights "
                "under a limit that one exceeds",
                target=float(count),
                bound=results.Bound.AT_LEAST,
                value=float(survived if any(whole.codes) else 0),
                unit="",
                detail=f"each may take {_gib(limit)} and takes {_gib(ended.data_bytes)}, without "
                f"weights {_gib(base)}; one process with all of them ends with exit code "
                f"{whole.codes[0]}",
            )
        )
    return measured


def _run(size: results.Size, count: int, limit: int | None) -> _Ended:
    settings: dict[str, object] = {"module": "large.py", "steps": _STEPS, "globalBatchSize": 32}
    mesh: dict[str, object] = {"stage": count}
    prefix = ["prlimit", f"--stack={_STACK_BYTES}", *([f"--data={limit}"] if limit else [])]
    data_bytes = [0] * count
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environments = launch.environments(
            folder,
            processes.MODELS,
            settings,
            processes=count,
            strategy="ModelSplit",
            mesh=mesh,
            more=_PLAIN,
        )
        with processes.group(processes.TRAINER, environments, size, folder, [prefix]) as running:
            while all(process.poll() is None for process in running):
                data_bytes = [
                    max(now, _data(process.pid))
                    for now, process in zip(data_bytes, running, strict=True)
                ]
                time.sleep(0.02)
            codes = [process.wait() for process in running]
    return _Ended(tuple(codes), max(data_bytes))


def _data(pid: int) -> int:
    """What RLIMIT_DATA counts of a process, in bytes; 0 when it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmData")), 0)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
