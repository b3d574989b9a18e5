"""A TFJob that says everything, and how tests change and convert it."""

import copy
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import yaml
from click import testing

from tfparallel.cli import app
from tfparallel.convert import tfjob
from tfparallel.convert.differences import Difference

ROOT = pathlib.Path(__file__).parents[2]

Document = dict[str, Any]
Change = Callable[[Document], object]

PLAIN = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: plain
spec:
  runPolicy:
    cleanPodPolicy: None
  tfReplicaSpecs:
    Chief:
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: example/plain:1
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: example/plain:1
"""


def plain(change: Change = lambda _: None) -> Document:
    document = copy.deepcopy(_parse_plain())
    change(document)
    return document


@functools.cache
def _parse_plain() -> Document:
    document: Document = yaml.safe_load(PLAIN)
    return document


def policy(document: Document) -> Document:
    found: Document = document["spec"]["runPolicy"]
    return found


def roles(document: Document) -> Document:
    found: Document = document["spec"]["tfReplicaSpecs"]
    return found


def worker(document: Document) -> Document:
    found: Document = roles(document)["Worker"]
    return found


def pod(document: Document) -> Document:
    found: Document = worker(document)["template"]["spec"]
    return found


def convert(document: Document, *, write_defaults: bool = True) -> tfjob.Converted:
    return tfjob.convert(document, write_defaults=write_defaults)


def found(converted: tfjob.Converted) -> set[Difference]:
    return {notice.difference for notice in converted.notices}


def run(*arguments: str, given: str = "") -> testing.Result:
    return testing.CliRunner().invoke(app.tfparallel, ["convert", *arguments], input=given)
