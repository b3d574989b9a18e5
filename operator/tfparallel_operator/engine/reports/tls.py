"""Certificates of the progress endpoint, signed by the operator's own certificate authority.

A Secret in the operator's namespace stores them, so pods trust them after a restart, too. After a
renewal of the authority, the old one stays in the bundle until it expires, because other replicas
of the operator may still use a certificate that it signed.
"""

import base64
import dataclasses
import datetime
import ipaddress
import logging
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

from tfparallel_operator import wall_clock
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources

_LOG = logging.getLogger(__name__)

AUTHORITY_DAYS = 3650
AUTHORITY_RENEWED_DAYS = 730
"""Days before the authority's expiry at which the operator replaces it. Running jobs receive the
new one in their ConfigMap, which the kubelet updates in their pods within about a minute."""

CERTIFICATE_DAYS = 365
CERTIFICATE_RENEWED_DAYS = 90

_KEYS = {
    "authorities": "ca.crt",
    "authority_key": "ca.key",
    "certificate": "tls.crt",
    "key": "tls.key",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """Certificates and keys, as PEM."""

    authorities: str
    """Certificates to trust: the current authority, then earlier ones."""
    authority_key: str
    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the server."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the certificate into a context, which a running server may use."""
        # ssl reads only files. A file in memory doesn't block the event loop, unlike a disk.
        with open(os.memfd_create("tls"), "w", encoding="ascii") as file:
            file.write(f"{self.certificate}\n{self.key}")
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


async def ensure(
    api: client.Client,
    namespace: str,
    name: str,
    host: str,
    clock: wall_clock.Clock = wall_clock.utc_now,
) -> Bundle:
    """Return the certificates of the Secret; create or renew those that are missing or expire soon.

    If two operators start at the same time, the second uses the Secret of the first.
    """
    path = resources.SECRETS.path(namespace, name)
    while True:
        try:
            secret = await api.get(path)
        except errors.NotFound:
            bundle = renew(None, host, clock())
            try:
                await api.create(resources.SECRETS, namespace, _secret(namespace, name, bundle))
            except errors.AlreadyExists:
                continue
            return bundle
        stored = _read(secret)
        bundle = renew(stored, host, clock())
        if bundle == stored:
            return bundle
        condition = {"resourceVersion": secret["metadata"]["resourceVersion"]}
        try:
            await api.patch(path, {"metadata": condition, "stringData": _data(bundle)})
        except errors.Conflict:
            continue
        _LOG.info("renewed the certificates of the progress endpoint in Secret %s", name)
        return bundle


def renew(stored: Bundle | None, host: str, now: datetime.datetime) -> Bundle:
    """Return the stored certificates, with new ones for those that expire soon."""
    authorities = [] if stored is None else _certificates(stored.authorities)
    if stored is None or _ends_within(authorities[0], AUTHORITY_RENEWED_DAYS, now):
        key = ec.generate_private_key(ec.SECP256R1())
        valid = [old for old in authorities if old.not_valid_after_utc > now]
        authorities = [_authority(key, now), *valid]
        return _signed(authorities, key, host, now)
    [certificate] = _certificates(stored.certificate)
    if _ends_within(certificate, CERTIFICATE_RENEWED_DAYS, now) or not _is_for(certificate, host):
        loaded = serialization.load_pem_private_key(stored.authority_key.encode(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("ca.key of the TLS Secret is no elliptic curve key: delete the Secret")
        return _signed(authorities, loaded, host, now)
    return stored


def _signed(
    authorities: list[x509.Certificate],
    authority_key: ec.EllipticCurvePrivateKey,
    host: str,
    now: datetime.datetime,
) -> Bundle:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        _builder(host, key, CERTIFICATE_DAYS, now)
        .issuer_name(authorities[0].subject)
        .add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        .add_extension(usage, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Bundle(
        authorities="".join(map(_pem, authorities)),
        authority_key=_key_pem(authority_key),
        certificate=_pem(certificate),
        key=_key_pem(key),
    )


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    subject = f"{names.GROUP} progress {now:%Y-%m-%d}"
    builder = _builder(subject, key, AUTHORITY_DAYS, now)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        builder.issuer_name(_subject(subject))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: str, key: ec.EllipticCurvePrivateKey, days: int, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _subject(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, text[:64])])


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _is_for(certificate: x509.Certificate, host: str) -> bool:
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return _name(host) in list(hosts.value)


def _ends_within(certificate: x509.Certificate, days: int, now: datetime.datetime) -> bool:
    return certificate.not_valid_after_utc < now + datetime.timedelta(days=days)


def _certificates(pem: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem.encode())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _secret(namespace: str, name: str, bundle: Bundle) -> client.Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
        },
        "type": "kubernetes.io/tls",
        "stringData": _data(bundle),
    }


def _data(bundle: Bundle) -> dict[str, str]:
    return {entry: getattr(bundle, field) for field, entry in _KEYS.items()}


def _read(secret: client.Object) -> Bundle | None:
    """Return the Secret's bundle; None: a key is missing, for example after a wrong edit."""
    data = secret.get("data") or {}
    if not all(data.get(entry) for entry in _KEYS.values()):
        return None
    return Bundle(
        **{field: base64.b64decode(data[entry]).decode() for field, entry in _KEYS.items()}
    )
