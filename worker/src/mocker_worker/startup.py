"""Makes the start of a worker cheap, since a scale-up starts many at once on few cores."""

import contextlib
import gc
import os
from collections.abc import Iterator

_CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_GC_THRESHOLDS = (50_000, 20, 100)
"""A cached block is an object for the collector, and a long prompt makes hundreds at once."""


@contextlib.contextmanager
def cheap_imports() -> Iterator[None]:
    """Import without garbage collection and without the machine's CA certificates.

    aiohttp makes TLS contexts for its client at import, and reading the certificates takes a
    tenth of the start-up time and 2 MiB. The worker uses aiohttp's server only; a TLS connection
    to NATS makes a context of its own when it connects. What was imported is kept out of later
    collections.
    """
    saved = {name: os.environ.get(name) for name in _CA_VARIABLES}
    os.environ.update(dict.fromkeys(_CA_VARIABLES, os.devnull))
    gc.disable()
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
