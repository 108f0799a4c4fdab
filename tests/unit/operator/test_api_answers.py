"""What the API server's answers mean to a pass."""

import pytest

from mocker_operator.kube.errors import (
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    Terminal,
    Transient,
    error_from_answer,
)

RBAC = (
    'services "demo-frontend" is forbidden: User "system:serviceaccount:a:b" cannot patch '
    'resource "services" in API group "" in the namespace "ns"'
)
UNTYPED = "failed to create typed patch object (ns/demo; apps/v1, Kind=Deployment): .spec.x"


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "cannot unmarshal", Terminal),
        (401, "Unauthorized", Transient),
        (403, "exceeded quota", Terminal),
        (403, RBAC, Forbidden),
        (404, "not found", Gone),
        (409, "the object has been modified", Conflict),
        (410, "too old resource version", Gone),
        (422, "field is immutable", Terminal),
        (429, "too many requests", Transient),
        (500, "etcdserver: request timed out", Transient),
        (500, UNTYPED, Terminal),
        (503, "apiserver is starting", Transient),
    ],
)
def test_every_answer_is_sorted_once(status: int, message: str, expected: type[KubeError]) -> None:
    error = error_from_answer(status, {"message": message})
    assert type(error) is expected
    assert error.status == status
    assert message in str(error)


def test_a_namespace_that_is_going_away_is_gone_and_no_missing_permission() -> None:
    causes = [{"reason": "NamespaceTerminating"}]
    answer = {"message": "forbidden", "details": {"causes": causes}}
    assert type(error_from_answer(403, answer)) is Gone


def test_a_missing_permission_names_the_rule_to_grant() -> None:
    error = error_from_answer(403, {"message": RBAC})
    assert str(error).startswith("grant verb patch on services (API group '')")


def test_an_answer_without_a_body_still_says_something() -> None:
    assert str(error_from_answer(502, {})) == "HTTP 502"


@pytest.mark.parametrize(
    ("header", "expected"), [("3", 3), (None, None), ("Wed, 21 Oct 2015", None), ("-1", 0)]
)
def test_the_wait_that_a_server_asks_for_is_read(
    header: str | None, expected: float | None
) -> None:
    error = error_from_answer(429, {}, header)
    assert isinstance(error, Transient)
    assert error.retry_after_s == expected
