"""Names, labels, owner and hash of the children.

Names are deterministic, so the API server itself refuses duplicates; the selector never changes,
because a Deployment's is immutable.
"""

import hashlib
import json
from typing import Any, Final

from mocker_operator.api.spec import FRONTEND
from mocker_operator.constants import (
    API_VERSION,
    COMPONENT_LABEL,
    DEPLOYMENT_LABEL,
    DESIRED_HASH_ANNOTATION,
    INSTANCE_LABEL,
    KIND,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    ROLE_LABEL,
)
from mocker_operator.reconcile.model import Key, Manifest

_HASH_LENGTH: Final = 16


def child_name(name: str, role: str) -> str:
    """Return the name of a role's Deployment, ConfigMap and Service."""
    return f"{name}-{role}"


def selector(name: str, role: str) -> dict[str, str]:
    """Return the labels that find the pods of a role."""
    return {DEPLOYMENT_LABEL: name, ROLE_LABEL: role}


def labels(name: str, role: str) -> dict[str, str]:
    """Return the labels that all children and pods of a role carry."""
    program = "mocker-frontend" if role == FRONTEND else "mocker-worker"
    return {
        NAME_LABEL: program,
        INSTANCE_LABEL: name,
        COMPONENT_LABEL: role,
        MANAGED_BY_LABEL: MANAGED_BY,
        **selector(name, role),
    }


def metadata(key: Key, role: str, uid: str) -> dict[str, Any]:
    """Return the metadata of a child; without a uid it has no owner."""
    found: dict[str, Any] = {
        "name": child_name(key.name, role),
        "namespace": key.namespace,
        "labels": labels(key.name, role),
    }
    if uid:
        found["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": key.name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return found


def digest(content: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a short hash of a JSON value that does not depend on the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def with_desired_hash(manifest: Manifest) -> Manifest:
    """Return the manifest with an annotation that holds the hash of all the rest."""
    annotated = {**manifest["metadata"], "annotations": {DESIRED_HASH_ANNOTATION: digest(manifest)}}
    return {**manifest, "metadata": annotated}
