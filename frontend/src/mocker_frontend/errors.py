"""What can go wrong with a request at the frontend, in the words of vLLM's API."""

from http import HTTPStatus
from typing import Final

import msgspec

_TYPES: Final = {
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
UNAUTHORIZED: Final = b'{"error":"Unauthorized"}'
"""Body of a 401, which alone has another form."""


class RequestFailed(Exception):
    """A request that the frontend answers itself."""

    def __init__(self, status: HTTPStatus, message: str, *, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        """Seconds for the Retry-After header; 0 leaves it out."""

    @property
    def body(self) -> bytes:
        """JSON of the error object."""
        return error_body(self.status, self.message)


def error_body(status: HTTPStatus, message: str) -> bytes:
    """Return the JSON of an error object."""
    is_clients = status < HTTPStatus.INTERNAL_SERVER_ERROR
    kind = _TYPES.get(status, "BadRequestError" if is_clients else "InternalServerError")
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": None, "code": int(status)}}
    )


def invalid_request(message: str) -> RequestFailed:
    """Return the answer to a body that no worker could understand."""
    return RequestFailed(HTTPStatus.BAD_REQUEST, message)


def no_worker(message: str) -> RequestFailed:
    """Return the answer when no worker could take the request."""
    return RequestFailed(HTTPStatus.SERVICE_UNAVAILABLE, message, retry_after_s=1)
