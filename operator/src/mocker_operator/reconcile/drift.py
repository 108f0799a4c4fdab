"""Whether a live object still is what was applied, judged by the fields that the operator owns.

What others add (a side-car injector's container, an annotation) stays and is no difference. A
field that is no longer wanted shows in the hash, since a subset cannot show it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mocker_operator.api.quantity import parse_quantity
from mocker_operator.constants import DESIRED_HASH_ANNOTATION
from mocker_operator.reconcile.model import Manifest

_MERGE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
}
"""Keys by which the API server merges the lists of maps that are rendered; others are atomic."""
_PORT_KEYS: Final = (("containerPort", "protocol"), ("port", "protocol"))
_ATOMIC_MAPS: Final = frozenset({"selector", "nodeSelector"})
"""Maps that the API server replaces as a whole, so that a key of somebody else is an edit."""
_QUANTITIES: Final = frozenset({"requests", "limits"})
_IDENTITY: Final = frozenset({"apiVersion", "kind"})


def needs_apply(desired: Manifest, live: Manifest | None) -> bool:
    """Whether the desired manifest must be applied; False means that it would change nothing."""
    return live is None or not _same_hash(desired, live) or not _holds(desired, live)


def was_accepted(desired: Manifest, live: Manifest) -> bool:
    """Whether the server has taken this very manifest before.

    If it refuses it now, that is due to what others have done to the live object since.
    """
    return _same_hash(desired, live)


def is_carried_out(desired: Manifest, live: Manifest | None) -> bool:
    """Whether the live object does what is desired; its labels and owner do not matter for that."""
    if live is None or "deletionTimestamp" in live["metadata"] or not _same_hash(desired, live):
        return False
    return all(contains(live.get(part), desired.get(part, {}), part) for part in ("spec", "data"))


def contains(live: Any, desired: Any, field: str = "") -> bool:  # noqa: ANN401 - any JSON value
    """Whether all of `desired` is in `live`.

    Args:
        live: Value that the API server answered.
        desired: Value that was applied.
        field: Name of the field that holds the values, which says how lists and numbers compare.
    """
    if isinstance(desired, Mapping):
        return _contains_map(live or {}, desired, field)
    if isinstance(desired, list):
        return isinstance(live, list) and _contains_list(live, desired, field)
    return live == desired and isinstance(live, bool) == isinstance(desired, bool)


def _same_hash(desired: Manifest, live: Manifest) -> bool:
    return _desired_hash(desired) == _desired_hash(live)


def _desired_hash(manifest: Manifest) -> object:
    return (manifest["metadata"].get("annotations") or {}).get(DESIRED_HASH_ANNOTATION)


def _holds(desired: Manifest, live: Manifest) -> bool:
    return all(contains(live.get(k), v, k) for k, v in desired.items() if k not in _IDENTITY)


def _contains_map(live: Any, desired: Mapping[str, Any], field: str) -> bool:  # noqa: ANN401
    if not isinstance(live, Mapping):
        return False
    if field in _QUANTITIES and all(isinstance(value, str) for value in desired.values()):
        return all(_same_quantity(live.get(name), value) for name, value in desired.items())
    if field in _ATOMIC_MAPS and live.keys() != desired.keys():
        return False
    return all(name in live and contains(live[name], v, name) for name, v in desired.items())


def _same_quantity(live: object, desired: str) -> bool:
    try:
        return parse_quantity(str(live)) == parse_quantity(desired)
    except ValueError:
        return live == desired


def _contains_list(live: list[Any], desired: list[Any], field: str) -> bool:
    keys = _merge_keys(field, desired)
    if keys is None:
        same_length = len(live) == len(desired)
        return same_length and all(map(contains, live, desired))
    found = {_identity(item, keys): item for item in live if isinstance(item, Mapping)}
    return all(
        (key := _identity(item, keys)) in found and contains(found[key], item) for item in desired
    )


def _merge_keys(field: str, desired: Sequence[Any]) -> tuple[str, ...] | None:
    if field != "ports":
        return _MERGE_KEYS.get(field)
    return next((keys for keys in _PORT_KEYS if all(keys[0] in item for item in desired)), None)


def _identity(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys)
