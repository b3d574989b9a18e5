"""A real S3 server on loopback, whose objects are files of a folder: the fixture `s3`."""

import dataclasses
import json
import pathlib
import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from testing import waiting
from testing.cluster import binaries, process
from tfparallel.backends.local import ports
from tfparallel_trainer.storage import address, bucket

KEY, SECRET, REGION = "tester", "a-secret-of-the-tests", "eu-west-3"
STRANGER = "stranger"
"""A user with the same secret and without rights."""
CLOSED = "http://127.0.0.1:9"
"""Nobody listens there: the cloud's own service of credentials, for the tests."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of its own for a test."""

    name: str
    files: pathlib.Path
    """The folder of its objects."""
    variables: Mapping[str, str]
    """The environment of a process that uses it."""

    @property
    def uri(self) -> str:
        """A prefix in the bucket."""
        return f"s3://{self.name}/runs"

    @property
    def results(self) -> pathlib.Path:
        """The folder of the objects of the job that tests run."""
        return self.files / "runs" / "test"

    @property
    def directory(self) -> bucket.Bucket:
        """The same as the trainer sees it, by the environment of this process."""
        return bucket.Bucket(address.Address.parse(f"{self.uri}/test"))

    @property
    def checkpoints(self) -> bucket.Bucket:
        """The checkpoints of the job that tests run."""
        return self.directory.child("checkpoints")

    def put(self, key: str, content: bytes) -> str:
        """Store an object; returns its address."""
        bucket_address = address.Address("s3", self.name)
        bucket.Bucket(bucket_address).write(key, content)
        return str(bucket_address.child(key))

    def checkpoint(self, **fields: Any) -> dict[str, Any]:
        """The field trainer.checkpoint of a job that uses the bucket."""
        return {"uri": self.uri, **fields}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pathlib.Path, str]]:
    """The folder of all buckets, and the server's address."""
    root = tmp_path_factory.mktemp("s3")
    (port,) = ports.allocate(1)
    endpoint = f"{ports.HOST}:{port}"
    with process.running(serve(root, endpoint), root / "log"):
        waiting.until(lambda: _answers(port), "an answer of the S3 server")
        yield root / "buckets", f"http://{endpoint}"


def serve(root: pathlib.Path, endpoint: str) -> list[str]:
    """Make the folders of a server; return the command that starts it."""
    binaries.ensure(binaries.OBJECT_STORE)
    for name in ("buckets", "metadata", "users"):
        (root / name).mkdir()
    user = {"access": STRANGER, "secret": SECRET, "role": "user"}
    users = {"accessAccounts": {STRANGER: user}}
    (root / "users" / "users.json").write_text(json.dumps(users))
    program = str(binaries.path(*binaries.OBJECT_STORE))
    options = {"access": KEY, "secret": SECRET, "region": REGION, "port": endpoint}
    options["iam-dir"] = str(root / "users")
    flags = [f"--{name}={value}" for name, value in options.items()]
    posix = ["posix", "--sidecar", str(root / "metadata"), str(root / "buckets")]
    return [program, *flags, "--quiet", *posix]


@pytest.fixture
def s3(s3_server: tuple[pathlib.Path, str], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket, which this process may use, too."""
    root, url = s3_server
    name = f"b-{secrets.token_hex(6)}"
    (root / name).mkdir()
    variables = {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_METADATA_ENDPOINT": CLOSED,
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    return Bucket(name, root / name, variables)


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((ports.HOST, port)) == 0
