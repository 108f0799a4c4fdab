"""What an operator process is told at its start."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mocker_operator.errors import InvalidConfig

ENV_PREFIX = "MOCKER_"
DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Settings of `mocker-operator run`."""

    worker_image: str
    nats_url: str = DEFAULT_NATS_URL
    worker_nats_url: str = DEFAULT_NATS_URL
    """NATS as the pods reach it."""
    image_pull_policy: str = "IfNotPresent"
    namespaces: tuple[str, ...] = ()
    """Namespaces by their exact names; empty for the whole cluster."""
    liveness_port: int | None = None
    metrics_port: int | None = None
    concurrency: int = 8
    """Passes at a time."""
    resync_s: float = 300.0
    """Every resource gets a pass at least this often, give or take a tenth."""

    def __post_init__(self) -> None:
        for namespace in self.namespaces:
            if re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", namespace) is None:
                # Kopf takes a pattern for one, and then watches nothing and says nothing.
                raise InvalidConfig(f"--namespace: {namespace!r} is no exact namespace name")


def default_from_environment(
    environ: Mapping[str, str], name: str, default: _T, words: Sequence[str] | None
) -> str | _T:
    """Return the variable `MOCKER_<NAME>`, or the default if it is unset or empty.

    Raises:
        InvalidConfig: if it is none of `words`; argparse does not check defaults.
    """
    value = environ.get(f"{ENV_PREFIX}{name}") or default
    if words is not None and value not in words and str(value).lower() not in words:
        raise InvalidConfig(f"{ENV_PREFIX}{name}: {value!r} is none of {', '.join(words)}")
    return value


def namespaces_from_environment(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the comma-separated names in `MOCKER_NAMESPACES`."""
    return [name for name in environ.get(f"{ENV_PREFIX}NAMESPACES", "").split(",") if name]
