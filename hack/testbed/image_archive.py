"""Image files made without a daemon: what `docker load` and `ctr images import` read.

Format: Docker image specification v1.2 (`docker save`): manifest.json, one configuration, and
layers as plain tars. The same input gives the same image id, so nothing is loaded twice.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from testbed.errors import TestbedError

_CHUNK_BYTES = 1 << 20
_EPOCH = "1970-01-01T00:00:00Z"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """What a container of the image starts with."""

    architecture: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[str] = ()

    def document(self, layer_digest: str) -> dict[str, object]:
        """The configuration of an image that has one layer."""
        environment = {"PATH": DEFAULT_PATH, **self.environment}
        config: dict[str, object] = {
            "Entrypoint": list(self.entrypoint) or None,
            "Cmd": list(self.command) or None,
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "User": self.user,
            "Labels": dict(self.labels) or None,
            "ExposedPorts": {port: {} for port in self.ports} or None,
        }
        return {
            "architecture": self.architecture,
            "os": "linux",
            "created": _EPOCH,
            "config": config,
            "history": [{"created": _EPOCH, "created_by": "hack/cluster.py"}],
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        }


class ImageArchive:
    """Writes one archive that holds any number of one-layer images."""

    def __init__(self, file: IO[bytes]) -> None:
        # A stream: the file may be a pipe. It stays open until `close`.
        self._tar = tarfile.open(fileobj=file, mode="w|", bufsize=_CHUNK_BYTES)  # noqa: SIM115
        self._manifest: list[dict[str, object]] = []

    def add(self, reference: str, layer: Path, settings: ImageSettings) -> None:
        """Add an image whose root file system is the tar `layer`."""
        digest = file_digest(layer)
        member = tarfile.TarInfo(f"{digest}/layer.tar")
        member.size = layer.stat().st_size
        with layer.open("rb") as content:
            self._tar.addfile(member, content)
        document = json.dumps(settings.document(digest)).encode()
        config_name = f"{hashlib.sha256(document).hexdigest()}.json"
        self._add_bytes(config_name, document)
        self._manifest.append(
            {"Config": config_name, "RepoTags": [reference], "Layers": [member.name]}
        )

    def close(self) -> None:
        """Write the manifest, without which the archive is no image file."""
        self._add_bytes("manifest.json", json.dumps(self._manifest).encode())
        self._tar.close()

    def _add_bytes(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        self._tar.addfile(member, io.BytesIO(content))


def write_compressed(target: Path, images: Mapping[str, tuple[Path, ImageSettings]]) -> None:
    """Write a zstd image file of {reference: (layer tar, settings)}."""
    command = ["zstd", "-q", "-T0", "-3", "-o", str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as zstd:
        assert zstd.stdin is not None
        _write(zstd.stdin, images)
        zstd.stdin.close()
    if zstd.returncode:
        raise TestbedError(f"zstd could not write {target} (status {zstd.returncode})")


def write_plain(target: Path, images: Mapping[str, tuple[Path, ImageSettings]]) -> None:
    """Write the same uncompressed, which asks for no program."""
    with target.open("wb") as file:
        _write(file, images)


def _write(file: IO[bytes], images: Mapping[str, tuple[Path, ImageSettings]]) -> None:
    archive = ImageArchive(file)
    for name, (layer, settings) in images.items():
        archive.add(name, layer, settings)
    archive.close()


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
