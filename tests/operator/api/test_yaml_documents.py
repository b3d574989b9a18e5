"""The YAML of a job's file, as kubectl reads it."""

import re
from typing import Any

import pytest

from tfparallel_operator.api import load, names, yaml_documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("=", "="),
        ("1e3", 1000.0),
        ("1.5e-3", 0.0015),
        (".5", 0.5),
        ("017", 15),
        ("0x10", 16),
        ("-1_000", -1000),
        ("0", 0),
        ("yes", True),
        ("null", None),
        ("1.2.3", "1.2.3"),
    ],
)
def test_a_value_is_what_kubectl_takes_it_for(text: str, value: Any) -> None:
    [document] = yaml_documents.parse(f"a: {text}", "job.yaml")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


def test_a_field_that_appears_twice_is_refused_with_both_lines() -> None:
    sentence = "job.yaml:4: spec.suspend: appears twice, first in line 3; remove one of them"
    with pytest.raises(load.SpecError, match=f"^{re.escape(sentence)}$"):
        yaml_documents.parse("a: 1\nspec:\n  suspend: true\n  suspend: false\n", "job.yaml")
    merged = "a: &a {suspend: true}\nb:\n  <<: *a\n  suspend: false\n"
    assert yaml_documents.parse(merged, "job.yaml")[0]["b"] == {"suspend": False}


def test_a_job_gets_a_name_of_its_prefix() -> None:
    text = f"kind: {names.KIND}\nmetadata: {{generateName: {'a' * 70}}}\n"
    jobs = [
        yaml_documents.find_job(yaml_documents.parse(text, "job.yaml"), "job.yaml")
        for _ in range(2)
    ]
    first, second = (job["metadata"]["name"] for job in jobs)
    assert re.fullmatch("a{58}[a-z0-9]{5}", first)
    assert first != second
