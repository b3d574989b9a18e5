"""Generated files are those that the types generate."""

import yaml

from testing import paths
from tfparallel_operator.api import schema

CRD = paths.ROOT / "manifests/base/crd/tfparallel.dev_tfparalleljobs.yaml"


def test_crd_is_small_and_plain() -> None:
    text = CRD.read_text(encoding="utf-8")
    assert not any(f" {mark}id0" in text for mark in "&*")
    assert text.startswith("# Generated from")
    assert yaml.load(text, yaml.CSafeLoader) == schema.custom_resource_definition()
