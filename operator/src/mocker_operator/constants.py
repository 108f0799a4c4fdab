"""Names by which the operator is known to the API server, and by which it knows its children.

Every child and every pod of a MockerDeployment carries the labels named here; the label selectors
below are how a pass finds them.
"""

from typing import Final

GROUP: Final = "mocker.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
PLURAL: Final = "mockerdeployments"
SINGULAR: Final = "mockerdeployment"
KIND: Final = "MockerDeployment"
SHORT_NAME: Final = "mkd"

FIELD_MANAGER: Final = "mocker-operator"
"""Field manager of every server-side apply."""

DEPLOYMENT_API_VERSION: Final = "apps/v1"
DEPLOYMENT_KIND: Final = "Deployment"
CONFIG_MAP_API_VERSION: Final = "v1"
CONFIG_MAP_KIND: Final = "ConfigMap"
SERVICE_API_VERSION: Final = "v1"
SERVICE_KIND: Final = "Service"

DEPLOYMENT_LABEL: Final = f"{GROUP}/deployment"
ROLE_LABEL: Final = f"{GROUP}/role"
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "mocker-operator"
MANAGED_BY_SELECTOR: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"

DESIRED_HASH_ANNOTATION: Final = f"{GROUP}/desired-hash"
"""Hash of the manifest that was applied last; a field left out since then shows as a difference."""
CONFIG_HASH_ANNOTATION: Final = f"{GROUP}/config-hash"
"""On pod templates: hash of the ConfigMap, so that a change of it rolls the pods."""

MAX_NAME_LENGTH: Final = 45
"""Of a MockerDeployment, so that `<name>-aggregated` and pod names stay within 63 characters."""
HTTP_PORT: Final = 8000


def selector_for(name: str) -> str:
    """Return the label selector of everything that belongs to one MockerDeployment."""
    return f"{DEPLOYMENT_LABEL}={name}"
