"""The cost of each mode besides time: messages and bytes by formula, and lines of code."""

import importlib.util
import io
import pathlib
import tokenize

from tfparallel.compare import trial_jobs, trial_records

_TRAINER = {
    trial_jobs.Mode.SYNC: (
        "comms/agreement.py",
        "comms/collectives.py",
        "objective/gradient_sums.py",
        "engines/mesh",
        "objective/synchrony.py",
    ),
    trial_jobs.Mode.ASYNC: ("engines/servers",),
}
"""Parts of the trainer that one mode alone needs."""

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def messages(mode: trial_jobs.Mode, model: trial_records.Model, workers: int, servers: int) -> int:
    """Messages of an update, at least.

    Sync: in a ring of N each worker sends 2(N-1) parts of the sum of all gradients, which travel
    as one tensor. Async: the chief gives the batch and gets the result; for each server the worker
    asks for a part of the step and is answered; each variable and each gradient is asked for and
    sent once.
    """
    if mode is trial_jobs.Mode.SYNC:
        return 2 * workers * (workers - 1)
    return 2 + 2 * servers + 4 * model.variables


def weight_bytes(mode: trial_jobs.Mode, model: trial_records.Model, workers: int) -> int:
    """Bytes of weights and gradients that an update sends over the network, with dense gradients.

    Sync: 2(N-1) times the gradients. Async: the weights to the worker, its gradient back.
    """
    if mode is trial_jobs.Mode.SYNC:
        return 2 * (workers - 1) * model.bytes
    return 2 * model.bytes


def lines(text: str) -> int:
    """Lines of Python with code on them: neither empty nor comments nor docstrings."""
    numbers: set[int] = set()
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        alone = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT)
        if token.type not in _SILENT and not alone:
            numbers.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.DEDENT):
            before = token.type
    return len(numbers)


def trainer_lines(mode: trial_jobs.Mode) -> int:
    """Lines of the trainer that this mode alone needs."""
    spec = importlib.util.find_spec("tfparallel_trainer")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("tfparallel_trainer")
    root = pathlib.Path(spec.origin).parent
    files = [
        file
        for part in _TRAINER[mode]
        for file in ([root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py")))
    ]
    return sum(lines(file.read_text(encoding="utf-8")) for file in files)
