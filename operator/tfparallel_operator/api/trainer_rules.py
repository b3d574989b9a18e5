"""Rules of `spec.trainer` alone."""

from collections.abc import Sequence

from tfparallel_operator.api import paths, rules
from tfparallel_trainer.contract import environment, job_file

RESERVED_VARIABLES = (
    environment.TF_CONFIG,
    environment.CLUSTER_FILE,
    environment.WORKERS,
    environment.JOB_FILE,
    environment.SOURCE_DIR,
    environment.OUTPUT_DIR,
    environment.ATTEMPT,
    environment.JOB_UID,
    environment.JOB_NAMESPACE,
    environment.PROGRESS_URL,
    environment.PROGRESS_TOKEN_FILE,
    environment.PROGRESS_CA_FILE,
    environment.AGENT_URL,
    environment.GRACE_SECONDS,
    environment.FAILURE_FILE,
)
"""Variables that the operator sets."""

RESERVED_PREFIX = "tfparallel-"
"""Prefix of the names of the operator's volumes."""


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(repr(value) for value in values)}]"


def _count(fields: Sequence[str]) -> str:
    """Return the expression that counts the fields that are set."""
    return " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)


TRAINER = rules.Rules(
    rules.Rule(
        "has(self.epochs) != has(self.steps)",
        "give either epochs or steps, so that training has one length",
    ),
    rules.Rule(
        "!has(self.source) || has(self.source.configMap) != has(self.source.archive)",
        "give either source.configMap or source.archive; remove source if the image has the code",
    ),
    rules.Rule(
        "!has(self.checkpoint) || has(self.checkpoint.claim) != has(self.checkpoint.uri)",
        "give either checkpoint.claim or checkpoint.uri, so that state has one place",
    ),
    rules.Rule(
        "!has(self.checkpoint) || !has(self.checkpoint.uri)"
        f" || self.checkpoint.uri.matches('{job_file.URI}')",
        "give checkpoint.uri as s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
        "'checkpoint.uri is %s: give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX'"
        ".format([self.checkpoint.uri])",
    ),
)

VARIABLE = rules.Rules(
    rules.Rule(
        f"!(self.name in {_texts(RESERVED_VARIABLES)})",
        "the operator sets this variable: remove it",
        "'the operator sets %s: remove it'.format([self.name])",
    ),
    rules.Rule(
        "!has(self.value) || !has(self.valueFrom)",
        "a variable has one value: give either value or valueFrom",
    ),
)

VARIABLE_SOURCE = rules.Rules(
    rules.Rule(
        f"{_count(('secretKeyRef', 'configMapKeyRef', 'fieldRef', 'resourceFieldRef'))} == 1",
        "a value has one source: give secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef",
    ),
)

VARIABLES = rules.Rules(
    rules.Rule(
        "has(self.secretRef) != has(self.configMapRef)",
        "give either secretRef or configMapRef, and another entry of envFrom for the other",
    ),
)

VOLUME = rules.Rules(
    rules.Rule(
        f"{_count(('claim', 'configMap', 'secret'))} == 1",
        "a volume has one source: give claim, configMap or secret",
    ),
    rules.Rule(
        f"!self.name.startsWith('{RESERVED_PREFIX}')",
        f"names that begin with {RESERVED_PREFIX} are the operator's: give another name",
    ),
    rules.Rule(
        "!self.mountPath.contains('/.')"
        f" && {_texts(paths.RESERVED)}.all(path, self.mountPath != path"
        " && !self.mountPath.startsWith(path + '/') && !path.startsWith(self.mountPath + '/'))",
        f"mountPath meets a folder of the trainer ({', '.join(paths.RESERVED)}), or a part of it"
        " begins with a point: give another path, such as /data",
    ),
)

VOLUMES = rules.Rules(
    rules.Rule(
        "self.all(one, self.exists_one(other, other.name == one.name))",
        "two volumes have one name: give each its own",
    ),
    rules.Rule(
        "self.all(one, self.exists_one(other, other.mountPath == one.mountPath))",
        "two volumes have one mountPath: give each its own",
    ),
)
