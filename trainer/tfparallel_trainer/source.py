"""Fetches a job's code and packages, as an init container: `python -m tfparallel_trainer.source`.

It unpacks an archive whose chunks are the files of a folder, and has pip install requirements. It
imports no TensorFlow, and ends with an exit code of `contract.exits`.
"""

import argparse
import errno
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from tfparallel_trainer import errors
from tfparallel_trainer.contract import environment, exits, source_code
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.reporting import console

_PIP = pathlib.Path("/opt/pip/bin/pip")
"""A separate environment with pip, which the trainer's image lacks."""

_OPTIONS = (
    *("--disable-pip-version-check", "--no-cache-dir", "--no-compile", "--no-input"),
    *("--no-warn-script-location", "--progress-bar=off", "--root-user-action=ignore"),
)

_UNREACHABLE = re.compile(
    r"Retrying \(Retry|Max retries exceeded|Could not fetch URL|(Connect|Read)Timeout"
    r"|NewConnectionError|NameResolutionError|Connection (refused|reset|aborted|broken)"
    r"|Network is unreachable|IncompleteRead|HTTP error 5\d\d|5\d\d Server Error"
)
"""Messages of pip if a server does not answer, after which a retry may succeed."""

_FULL = "No space left on device"
_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Errors of disks after which a retry, or another node, may succeed."""

_LONGEST_REASON = 400
_PACKAGES = "*/python*/*-packages"
"""Where packages are below a prefix; Debian's own Python puts `local` before it."""


def main(arguments: Sequence[str], env: Mapping[str, str]) -> exits.Exit:
    """Fetch what the arguments name, and say how it ended."""
    out = console.Console("", env.get(environment.FAILURE_FILE, ""))
    try:
        _fetch(_parser().parse_args(arguments), out)
    except OSError as error:
        if error.errno in _TRANSIENT:
            out.fail(f"The source cannot be written: {error}. The pod is made again.")
            return exits.Exit.STORAGE_FAILED
        out.fail(
            f"The source cannot be written: {error}. Let the user of the container write to its"
            " volumes, and archive no file below the path of another one."
        )
        return exits.Exit.BAD_CONFIGURATION
    except Exception as error:
        return termination.exit_of(out, error, "source's container")
    return exits.Exit.DONE


def unpack(chunks: pathlib.Path, sha256: str, folder: pathlib.Path) -> int:
    """Unpack an archive of this digest into a folder, and return how many files it has.

    Its chunks are a folder's files, ordered by name. No such archive is a BadConfigurationError.
    """
    parts = sorted(file for file in chunks.iterdir() if file.name.isdecimal())
    count = 0
    try:
        content = source_code.join((file.read_bytes() for file in parts), sha256)
        for file in source_code.read_files(content):
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                target.writelines(file.blocks)
            path.chmod(0o755 if file.executable else 0o644)
            count += 1
    except ValueError as error:
        raise errors.BadConfigurationError(
            f"trainer.source.archive cannot be unpacked: {error}. Archive the source again, and"
            " name the ConfigMaps of its chunks in their order."
        ) from error
    return count


def install(file: pathlib.Path, folder: pathlib.Path, out: console.Console) -> None:
    """Have pip add the requirements of a file to the packages here, which stay as they are.

    The folder takes the packages.

    Raises:
        BadConfigurationError: no such file, no pip, or requirements that cannot be met.
        StorageError: a server does not answer, or the disk is full.
    """
    if not file.is_file():
        raise errors.BadConfigurationError(
            f"trainer.source.requirements is {file.name!r}, and the source has no such file: add"
            " it, or remove the field."
        )
    file, folder = file.absolute(), folder.absolute()
    prefix, constraints = folder / ".prefix", folder / ".constraints"
    constraints.write_text("\n".join(_installed()), encoding="utf-8")
    # Unlike --target, --prefix leaves out what is installed already.
    chosen = [f"--prefix={prefix}", f"--constraint={constraints}", f"--requirement={file}"]
    output = _run([*_pip(), "install", *_OPTIONS, *chosen], file.parent, out)
    if output is not None:
        raise _failure(file.name, output)
    for packages in (*prefix.glob(_PACKAGES), *prefix.glob(f"local/{_PACKAGES}")):
        # The volume's folder belongs to another user, so nothing of it is written but its entries.
        for entry in packages.iterdir():
            entry.rename(folder / entry.name)
    shutil.rmtree(prefix, ignore_errors=True)


def _fetch(arguments: argparse.Namespace, out: console.Console) -> None:
    if arguments.chunks is not None:
        _empty(arguments.source)
        count = unpack(arguments.chunks, arguments.sha256, arguments.source)
        out.say(f"unpacked the {count} files of the source")
    if arguments.requirements is not None:
        _empty(arguments.packages)
        install(arguments.source / arguments.requirements, arguments.packages, out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfparallel_trainer.source", description=__doc__)
    folder = pathlib.Path
    parser.add_argument("--source", type=folder, required=True, help="the folder of the source")
    parser.add_argument("--chunks", type=folder, help="a folder with the chunks of an archive")
    parser.add_argument("--sha256", help="of the archive")
    parser.add_argument("--requirements", help="a file of the source")
    parser.add_argument("--packages", type=folder, help="the folder that packages are put into")
    return parser


def _empty(folder: pathlib.Path) -> None:
    """Empty the folder, because a restarted node runs init containers again in the same volumes."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _installed() -> list[str]:
    """Return a constraint for each package of this environment."""
    read = (distribution.metadata for distribution in importlib.metadata.distributions())
    return sorted(
        {f"{package['Name']}=={package['Version']}" for package in read if package["Name"]}
    )


def _pip() -> list[str]:
    if _PIP.is_file():
        return [str(_PIP), f"--python={sys.executable}"]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    raise errors.BadConfigurationError(
        "trainer.source.requirements is given, and the image has no pip: begin the image FROM the"
        " trainer's, or install the packages into it and remove the field."
    )


def _run(command: Sequence[str], folder: pathlib.Path, out: console.Console) -> str | None:
    """Show the output of a command, and return it if the command fails."""
    lines = []
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            for line in running.stdout or ():
                out.say(line.rstrip())
                lines.append(line)
        except BaseException:
            running.kill()
            raise
    return "".join(lines) if running.returncode else None


def _failure(file: str, output: str) -> errors.TrainerError:
    """Say why pip has failed: what another try may mend, or what a person has to."""
    reason = _reason(output)
    if _FULL in output:
        return errors.StorageError(f"{file}: the disk is full: {reason}. The pod is made again.")
    if _UNREACHABLE.search(output):
        return errors.StorageError(
            f"{file}: packages cannot be downloaded: {reason}. The pod is made again; if this goes"
            " on, give an index that pods reach as PIP_INDEX_URL in trainer.env."
        )
    return errors.BadConfigurationError(
        f"{file}: pip cannot meet the requirements with the packages of the image: {reason}."
        " Correct them, or build an image of your own."
    )


def _reason(output: str) -> str:
    """Return what pip names as its errors, with the requirements that exclude each other."""
    reasons, conflicting = [], False
    for line in output.splitlines():
        error = line.partition("ERROR: ")[2]
        if (error and not error.startswith("ResolutionImpossible")) or conflicting:
            reasons.append((error or line).strip().rstrip(".:"))
        conflicting = bool(line.strip()) and (conflicting or "conflict is caused by" in line)
    return (
        "; ".join(dict.fromkeys(filter(None, reasons)))[:_LONGEST_REASON]
        or output[-_LONGEST_REASON:].strip()
    )


def _give_up(*_: object) -> NoReturn:
    raise errors.PreemptedError("Asked to end while the source was fetched.")


if __name__ == "__main__":
    # The first process of a container ignores SIGTERM unless it says otherwise.
    signal.signal(signal.SIGTERM, _give_up)
    sys.exit(main(sys.argv[1:], os.environ))
