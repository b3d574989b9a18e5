"""Settings of the operator's process: one field, one option and one variable for each."""

import dataclasses
import enum
import json
import platform
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import click

from tfparallel_operator.api import types
from tfparallel_operator.api_server import credentials
from tfparallel_operator.core import installation
from tfparallel_operator.core.pods.restrictions import find_problem_of_defaults
from tfparallel_operator.engine.telemetry import logs

E = TypeVar("E", bound=enum.StrEnum)


class _Values(click.Choice[E]):
    """A member of an enum by its value."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the value, where click itself takes the name."""
        return str(choice)


class _Names(click.ParamType[tuple[str, ...]]):
    """Names that commas separate."""

    name = "names"

    def convert(self, value: Any, *_: object) -> tuple[str, ...]:
        """Split the text; a tuple is there already."""
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(name for name in map(str.strip, parts) if name)


class _PodTemplate(click.ParamType[dict[str, Any]]):
    """A pod template as JSON."""

    name = "pod template"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> dict[str, Any]:
        """Parse the text; a mapping is there already."""
        try:
            template: Any = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{value!r} is no JSON: {error}", parameter, context)
        if not isinstance(template, dict) or template.keys() - {"metadata", "spec"}:
            self.fail(f"{value!r}: write an object with metadata and spec", parameter, context)
        return template


class _Restrictions(click.ParamType[installation.Restrictions]):
    """The chart's jobs.restrictions as JSON."""

    name = "restrictions"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> installation.Restrictions:
        """Parse the text; restrictions are there already."""
        if isinstance(value, installation.Restrictions):
            return value
        try:
            return _parse_restrictions(json.loads(value))
        except (ValueError, TypeError, AttributeError) as error:
            self.fail(
                f"{value!r}: write an object with serviceAccounts (a list), hostAccess (Allowed or"
                f" Forbidden) and secrets.matchLabels (an object). {error}",
                parameter,
                context,
            )


def _parse_restrictions(document: dict[str, Any]) -> installation.Restrictions:
    unknown = document.keys() - {"serviceAccounts", "hostAccess", "secrets"}
    secret_rule = document.get("secrets") or {"matchLabels": {}}
    if unknown or secret_rule.keys() != {"matchLabels"}:
        raise ValueError("A restriction that the operator does not know would not hold.")
    accounts, labels = document.get("serviceAccounts") or [], secret_rule["matchLabels"] or {}
    if not isinstance(accounts, list):
        raise TypeError("serviceAccounts is no list.")
    return installation.Restrictions(
        tuple(map(str, accounts)),
        installation.HostAccess(document.get("hostAccess") or installation.HostAccess.ALLOWED),
        {str(name): str(text) for name, text in labels.items()},
    )


_NAMES = _Names()


def _field(
    text: str,
    default: Any = dataclasses.MISSING,
    *,
    factory: Any = dataclasses.MISSING,
    kind: click.ParamType[Any] = click.STRING,
    variable: str = "",
) -> Any:
    """Describe a field and its option; its variable is by default TFPARALLEL_ and its name."""
    option = {"help": text, "type": kind, "envvar": variable}
    return dataclasses.field(default=default, default_factory=factory, metadata=option)


def _random_name() -> str:
    return f"{platform.node()}-{secrets.token_hex(4)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the process; `build` fills them from options and environment variables."""

    trainer_image: str = _field("Image of replicas that have no template.")
    trainer_pull_secrets: tuple[str, ...] = _field(
        "Comma-separated Secrets that pull that image, in the namespaces of jobs.",
        (),
        kind=_NAMES,
    )
    pod_defaults: Mapping[str, Any] = _field(
        "Pod template (JSON) that fills in what the templates of jobs leave out.",
        factory=dict,
        kind=_PodTemplate(),
    )
    restrictions: installation.Restrictions = _field(  # noqa: RUF009
        "What jobs may use of their namespace and nodes (JSON, as the chart's jobs.restrictions).",
        factory=installation.Restrictions,
        kind=_Restrictions(),
    )
    watch_namespaces: tuple[str, ...] = _field(
        "Comma-separated namespaces whose jobs the operator runs; empty: all.", (), kind=_NAMES
    )
    namespace: str = _field(
        "The operator's own namespace, of its Lease and its TLS Secret. Absent: its pod's.",
        variable="POD_NAMESPACE",
        factory=credentials.own_namespace,
    )
    instance: str = _field(
        "Name of this operator, unique among those that run: its pod's. Absent: a random name.",
        variable="POD_NAME",
        factory=_random_name,
    )
    lease: str = _field(
        "Lease by which several operators elect a leader; empty: this operator is the only one.", ""
    )
    lease_seconds: int = _field(
        "Seconds without a renewal after which another operator becomes the leader.",
        15,
        kind=click.IntRange(min=3),
    )
    progress_host: str = _field(
        "Host name by which pods reach the progress endpoint; empty: none.", ""
    )
    progress_port: int = _field("Port of the progress endpoint.", 8443, kind=click.INT)
    health_port: int = _field("Port of probes and metrics; 0: a free one.", 8080, kind=click.INT)
    metrics: bool = _field(
        "Whether the operator serves /metrics, over plain HTTP.", True, kind=click.BOOL
    )
    tls_secret: str = _field(
        "Secret that keeps the progress endpoint's certificates.", "tfparallel-operator-tls"
    )
    host_ports_per_namespace: int = _field(
        "Ports of nodes that the jobs with hostNetwork of a namespace may have at once.",
        installation.HOST_PORTS_OF_NAMESPACE,
        kind=click.IntRange(min=1, max=20_000),
    )
    workers: int = _field(
        "Jobs of one namespace that the operator reconciles at the same time. One more worker is"
        " left to the other namespaces.",
        4,
        kind=click.IntRange(min=1),
    )
    log_format: logs.LogFormat = _field(  # noqa: RUF009 (a field of `dataclasses`)
        "How log lines are written.", logs.LogFormat.JSON, kind=_Values(logs.LogFormat)
    )
    gang_scheduler: types.GangScheduler | None = _field(  # noqa: RUF009
        "Who starts together the pods of jobs that have runPolicy.schedulingPolicy and name no gang"
        " scheduler; without it such jobs are refused.",
        None,
        kind=_Values(types.GangScheduler),
    )
    coscheduling_name: str = _field(
        "Name of the scheduler that has the plugin Coscheduling.",
        installation.Gangs().coscheduling_name,
    )
    kubeconfig: str | None = _field(
        "Kubeconfig for running outside of a cluster; without it the service account is used.",
        None,
        variable="KUBECONFIG",
    )

    @staticmethod
    def from_environment() -> "Settings":
        """Return the settings of the environment variables.

        Raises:
            click.UsageError: a variable is missing or invalid.
        """
        command = click.Command("tfparallel-operator", params=options())
        return build(command.make_context("tfparallel-operator", []).params)

    @property
    def installation_name(self) -> str:
        """Name of the installation: operators that share a Lease or a TLS Secret are one."""
        return f"{self.namespace}/{self.lease or self.tls_secret}"

    @property
    def gangs(self) -> installation.Gangs:
        """Which gang schedulers the installation has."""
        return installation.Gangs(self.gang_scheduler, self.coscheduling_name)


def options() -> list[click.Parameter]:
    """Return the option of each field."""
    return [_option(field) for field in dataclasses.fields(Settings)]


def _option(field: dataclasses.Field[Any]) -> click.Option:
    default = field.default.value if isinstance(field.default, enum.Enum) else field.default
    has_default = default not in (dataclasses.MISSING, None)
    return click.Option(
        [f"--{field.name.replace('_', '-')}"],
        help=field.metadata["help"],
        type=field.metadata["type"],
        envvar=field.metadata["envvar"] or f"TFPARALLEL_{field.name.upper()}",
        show_envvar=True,
        show_default=has_default and bool(default),
        required=field.default is field.default_factory,  # Both are missing.
        **({"default": default} if has_default else {}),  # With None, click requires nothing.
    )


def build(values: Mapping[str, Any]) -> Settings:
    """Return the settings of the options' values; None and the empty text: the field's default.

    Raises:
        click.UsageError: the restrictions forbid what the defaults add to each pod.
    """
    settings = Settings(
        **{name: value for name, value in values.items() if value not in (None, "")}
    )
    problem = find_problem_of_defaults(settings.pod_defaults, settings.restrictions)
    if problem:
        raise click.UsageError(problem)
    return settings
