"""What can go wrong with a request at the frontend, and how OpenAI's API words it."""

import msgspec


class RequestFailed(Exception):
    """A request that the frontend answers itself, with an OpenAI error body."""

    def __init__(self, status: int, message: str, *, kind: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.retry_after_s = retry_after_s
        """Seconds for the Retry-After header; 0 leaves it out."""

    @property
    def body(self) -> bytes:
        """JSON of the OpenAI error object."""
        return error_body(self.status, self.message, kind=self.kind)


def error_body(status: int, message: str, *, kind: str) -> bytes:
    """Return the JSON of an OpenAI error object."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}
    )


def invalid_request(message: str) -> RequestFailed:
    """Return the answer to a body that no worker could understand."""
    return RequestFailed(400, message, kind="invalid_request_error")


def no_worker(message: str) -> RequestFailed:
    """Return the answer when no worker could take the request."""
    return RequestFailed(503, message, kind="service_unavailable", retry_after_s=1)
