"""The cluster's own certificate authority, its certificates and its kubeconfig files."""

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

LIFETIME = datetime.timedelta(days=30)
CLOCK_TOLERANCE = datetime.timedelta(hours=1)
ADMINISTRATORS = "system:masters"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs every certificate of one cluster; its key never leaves the cluster's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("tfparallel-test-cluster", None)
        builder = _builder(self._name, self._name, self._key)
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        signed = builder.add_extension(constraint, critical=True).sign(self._key, hashes.SHA256())
        self.ca = _write(folder / "ca", signed, self._key)

    def issue(
        self, name: str, user: str, group: str | None = None, hosts: Sequence[str] = ()
    ) -> Pair:
        """A certificate that its holder may use as a server (for `hosts`) and as a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(user, group), self._name, key)
        usages = [oid.ExtendedKeyUsageOID.CLIENT_AUTH, oid.ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return _write(self._folder / name, builder.sign(self._key, hashes.SHA256()), key)

    def kubeconfig(self, path: Path, server: str, user: str, group: str | None = None) -> Path:
        """Write a kubeconfig for a user; it holds its certificates and can be moved anywhere."""
        pair = self.issue(f"client-{path.stem}", user, group)
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca.certificate)}
        credentials = {
            "client-certificate-data": _base64(pair.certificate),
            "client-key-data": _base64(pair.key),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": credentials}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - CLOCK_TOLERANCE,
        not_valid_after=now + LIFETIME,
    )


def _subject(user: str, group: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(oid.NameOID.COMMON_NAME, user)]
    if group is not None:
        attributes.append(x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(stem: Path, signed: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pair = Pair(stem.with_suffix(".crt"), stem.with_suffix(".key"))
    pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pair.key.touch(mode=0o600)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pair


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
