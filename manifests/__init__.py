"""Kustomize's manifests, and the program that generates files from others: `make manifests`.

`resource` writes what follows from the types; `chart_values`, `alerts` and `dashboard` what chart,
kustomize and docs share; `command_reference`, `sections` (with `limits`) and `schematics` pages and
their pictures; `version` the version wherever it is repeated.
"""


def header(source: str) -> str:
    """Return the sentence that says where a file comes from."""
    return f"Generated from {source} by `make manifests`. Do not edit."
