"""Errors of the HTTP API in vLLM's form: `{"error": {message, type, param, code}}`.

Pure: `server.app` makes HTTP answers of them.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus

UNAUTHORIZED_BODY = b'{"error": "Unauthorized"}'
_TYPES: Mapping[HTTPStatus, str] = {
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.NOT_IMPLEMENTED: "NotImplementedError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}


def _other_type(status: HTTPStatus) -> str:
    is_clients = status < HTTPStatus.INTERNAL_SERVER_ERROR
    return "BadRequestError" if is_clients else "InternalServerError"


class ApiError(Exception):
    """A request that is answered with an error.

    `param` names the field that is wrong; `error_type` goes with the status when it is not given.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        error_type: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.error_type = error_type or _TYPES.get(status) or _other_type(status)


class InvalidRequest(ApiError):
    """A field has a value that no engine would take (400)."""

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, message, param=param)


class NotSupported(ApiError):
    """A field asks for something that this engine does not do (501)."""

    def __init__(self, param: str, remedy: str) -> None:
        message = f"{param}: not supported by the mock engine; {remedy}"
        super().__init__(HTTPStatus.NOT_IMPLEMENTED, message, param=param)


def error_body(error: ApiError) -> bytes:
    """Return the JSON body of an error; that of 401 says no more than `Unauthorized`."""
    if error.status is HTTPStatus.UNAUTHORIZED:
        return UNAUTHORIZED_BODY
    detail = {
        "message": error.message,
        "type": error.error_type,
        "param": error.param,
        "code": int(error.status),
    }
    return json.dumps({"error": detail}).encode()


def unavailable(message: str) -> ApiError:
    """Return the error of a worker that cannot answer for the moment (503)."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message)
