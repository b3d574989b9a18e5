"""The job of a script that runs a function."""

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any, Unpack

import yaml

from tfparallel import job_templates, manifest, source_packing
from tfparallel.functions import program as programs
from tfparallel_operator.api import load, names

_TEMPLATE = "script.yaml"
_RESULTS = "results"
"""The volume of the template for results, and its claim."""

_OWN_AFFAIRS = ("epochs", "steps", "global_batch_size", "seed", "checkpoint", "evaluator")
"""Options that tell the trainer what the code of a function says itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionJob:
    """A job, and the files that it runs."""

    document: dict[str, Any]
    program: programs.Program
    packages: Sequence[str]
    """What pip installs in a cluster."""

    def write(self, target: pathlib.Path, folder: pathlib.Path | None) -> None:
        """Write the program into a folder, next to a copy of the user's files.

        Args:
            target: the folder.
            folder: of files that the function imports or reads; None: it needs none.

        Raises:
            SpecError: the user's files cannot be sent with a job.
        """
        if folder is not None:
            for name in source_packing.pack(folder, None).files:
                copy = target / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / name, copy)
        (target / programs.FILE).write_text(self.program.text, encoding="utf-8")
        if self.packages:
            with (target / source_packing.REQUIREMENTS).open("a", encoding="utf-8") as file:
                file.write("".join(f"{package}\n" for package in ("", *self.packages)))


def build(
    function: object,
    arguments: object,
    packages: Sequence[str],
    **options: Unpack[manifest.Options],
) -> FunctionJob:
    """Return the job that runs a function in each replica.

    Args:
        arguments: of the function, by name.
        packages: what pip installs before.

    Raises:
        SpecError: the function, an argument or an option is wrong.
    """
    program = programs.build(function, arguments)
    for option in _OWN_AFFAIRS:
        if options.get(option) is not None:
            raise load.SpecError(
                f"{option}: received {options.get(option)!r}, and a function says itself how it"
                f" trains. Pass the value in func_args, and use it in {program.name}"
            )
    name = options.get("name") or manifest.to_name(program.name)
    document = _rename(yaml.safe_load(job_templates.read(_TEMPLATE)), name)
    spec = document["spec"]
    worker = {**spec["tfReplicaSpecs"]["Worker"], "replicas": 1}
    spec["tfReplicaSpecs"] = {"Worker": worker}
    _fill(worker["template"]["spec"], program)
    if not program.takes_results:
        del spec["volumeClaimTemplates"], spec["scheduling"]
    if options.get("parameter_servers"):
        spec["tfReplicaSpecs"]["PS"] = {"template": worker["template"]}
    return FunctionJob(manifest.change(document, **options), program, packages)


def _rename(value: Any, name: str) -> Any:
    """Return a template whose objects have the names of a job."""
    if isinstance(value, dict):
        return {key: _rename(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rename(inner, name) for inner in value]
    return value.replace(job_templates.NAME, name) if isinstance(value, str) else value


def _fill(pod_spec: dict[str, Any], program: programs.Program) -> None:
    """Have a template run the program, with a folder for results if it asks for one."""
    [container] = (
        candidate for candidate in pod_spec["containers"] if candidate["name"] == names.CONTAINER
    )
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    del container["resources"]
    container["command"] = ["python", programs.FILE]
    if program.takes_results:
        container["command"].append(mounts[_RESULTS]["mountPath"])
        return
    container["volumeMounts"].remove(mounts[_RESULTS])
    pod_spec["volumes"] = [volume for volume in pod_spec["volumes"] if volume["name"] != _RESULTS]
