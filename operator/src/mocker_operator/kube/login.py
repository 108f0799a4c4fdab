"""How the operator finds and proves itself to the API server: one answer for both of its clients.

An explicit `KUBECONFIG` wins, then a pod's service account, then `~/.kube/config`. The gateway and
Kopf share what was found, so they never talk to two different clusters.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import kopf
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, incluster_config, load_kube_config

from mocker_operator.errors import InvalidConfig

SERVICE_ACCOUNT_DIR = Path(incluster_config.SERVICE_TOKEN_FILENAME).parent
DEFAULT_KUBECONFIG = "~/.kube/config"


async def load_configuration(
    environ: Mapping[str, str] = os.environ, service_account_dir: Path = SERVICE_ACCOUNT_DIR
) -> Configuration:
    """Return how to reach the API server.

    Raises:
        InvalidConfig: if there is no usable kubeconfig and no service account.
    """
    configuration = Configuration()
    explicit = environ.get("KUBECONFIG")
    try:
        if not explicit and incluster_config.SERVICE_HOST_ENV_NAME in environ:
            _load_service_account(configuration, environ, service_account_dir)
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=explicit or DEFAULT_KUBECONFIG, client_configuration=configuration
            )
    except (ConfigException, OSError) as error:
        raise InvalidConfig(
            f"no access to an API server: {error}; set KUBECONFIG or run with a service account"
        ) from error
    return configuration


def _load_service_account(
    configuration: Configuration, environ: Mapping[str, str], directory: Path
) -> None:
    loader = incluster_config.InClusterConfigLoader(  # type: ignore[no-untyped-call]
        token_filename=str(directory / "token"),
        cert_filename=str(directory / "ca.crt"),
        environ=environ,
    )
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the same credentials for Kopf; a token is read afresh on every call."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
