"""The project's base image where no registry has one: Debian's Python.

It trusts the certificate authorities that this machine trusts, so pip works behind a private one.
"""

import functools
from pathlib import Path

from testbed import debian, versions
from testbed.golang import architecture
from testbed.image_archive import ImageSettings, write_compressed
from testbed.workshop import Workshop, recipe_hash

_PACKAGES = ("python3", "python3-venv", "ca-certificates", "libstdc++6")
"""libstdc++ is what zmq is linked with; Python's public images have it."""
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def reference() -> str:
    """The image's name, which changes with its recipe and with the authorities."""
    return f"localhost/mocker-base:{versions.DEBIAN}-{_key()}"


def ensure(shop: Workshop) -> Path:
    """Return the image file, building it if it is missing."""
    debian.require_programs(shop, ["mmdebstrap", "zstd"], needed_for="making a base image")
    archive = shop.artefact(f"base-{versions.DEBIAN}-{architecture()}-{_key()}.tar.zst")
    return shop.ensure(archive, "build base image", _build)


@functools.cache
def _key() -> str:
    authorities = [AUTHORITIES] if AUTHORITIES.exists() else []
    return recipe_hash(versions.DEBIAN, _PACKAGES, Path(__file__), *authorities)


def _build(target: Path, log: Path) -> None:
    layer = target.parent / "base.tar"
    uploads = [AUTHORITIES] if AUTHORITIES.exists() else []
    debian.root_file_system(layer, _PACKAGES, variant="essential", log=log, uploads=uploads)
    write_compressed(target, {reference(): (layer, ImageSettings(architecture()))})
