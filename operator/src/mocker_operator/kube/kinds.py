"""The kinds that the operator reads and writes, and their paths on the API server."""

from typing import NamedTuple

from mocker_operator import constants


class ResourceKind(NamedTuple):
    """A namespaced kind."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    def path(self, namespace: str, *tail: str) -> str:
        """Return the URL path of the collection, or of what `tail` names in it."""
        root = "/apis" if self.group else "/api"
        return "/".join((f"{root}/{self.api_version}/namespaces/{namespace}", self.plural, *tail))


MOCKER_DEPLOYMENT = ResourceKind(constants.API_VERSION, constants.KIND, constants.PLURAL)
DEPLOYMENT = ResourceKind(
    constants.DEPLOYMENT_API_VERSION, constants.DEPLOYMENT_KIND, "deployments"
)
SERVICE = ResourceKind(constants.SERVICE_API_VERSION, constants.SERVICE_KIND, "services")
CONFIG_MAP = ResourceKind(constants.CONFIG_MAP_API_VERSION, constants.CONFIG_MAP_KIND, "configmaps")
POD = ResourceKind("v1", "Pod", "pods")
EVENT = ResourceKind("events.k8s.io/v1", "Event", "events")

CHILDREN = (DEPLOYMENT, SERVICE, CONFIG_MAP)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in CHILDREN}


def child_kind(api_version: str, kind: str) -> ResourceKind:
    """Return the kind of a child.

    Raises:
        KeyError: if the operator never makes such a child.
    """
    return _BY_NAME[api_version, kind]
