"""A TFJob with every field, and how tests change and convert it."""

import copy
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import yaml
from click import testing

from tfparallel.cli import app
from tfparallel.convert import conversion, tfjob

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
    fields: Document = document["spec"]["runPolicy"]
    return fields


def roles(document: Document) -> Document:
    fields: Document = document["spec"]["tfReplicaSpecs"]
    return fields


def worker(document: Document) -> Document:
    fields: Document = roles(document)["Worker"]
    return fields


def pod(document: Document) -> Document:
    fields: Document = worker(document)["template"]["spec"]
    return fields


def convert(document: Document, *, write_defaults: bool = True) -> conversion.Converted:
    return tfjob.convert(document, write_defaults=write_defaults)


def differences(converted: conversion.Converted) -> set[conversion.Difference]:
    return {notice.difference for notice in converted.notices}


def run(*arguments: str, text: str = "") -> testing.Result:
    return testing.CliRunner().invoke(app.tfparallel, ["convert", *arguments], input=text)
