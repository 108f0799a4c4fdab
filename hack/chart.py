"""Installs the chart as the README says, for the story, the cluster tests and the benchmarks."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "mocker"
NAMESPACE = "mocker-system"
NATS_SERVICE = f"service/{RELEASE}-nats"


def install() -> str:
    """Install or upgrade the chart with the images of the environment, and wait until it is up.

    IMAGE names the programs' image. NATS_IMAGE is set where no public image can be pulled.

    Returns:
        The helm command, as one could type it in the project's root.
    """
    nats = os.environ.get("NATS_IMAGE", "")
    command = ["helm", "upgrade", "--install", RELEASE, "charts/mocker-operator"]
    command += ["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"]
    for prefix, image in (("image", os.environ["IMAGE"]), ("nats.image", nats)):
        if image:
            repository, tag = split_reference(image)
            command += ["--set-string", f"{prefix}.repository={repository}"]
            command += ["--set-string", f"{prefix}.tag={tag}"]
    # Helm installs a missing CRD and never upgrades one.
    definitions = ["kubectl", "apply", "--server-side", "--force-conflicts", "--filename", "crds"]
    for each in (definitions, command):
        subprocess.run(each, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return " ".join(command)


def split_reference(image: str) -> tuple[str, str]:
    """An image's repository and tag; without a tag it is `latest`, as for every client.

    A digest counts as a tag of `repository@sha256`: joined by a colon again, they name the same.
    """
    repository, _, tag = image.rpartition(":")
    if not repository or "/" in tag:  # no colon, or only that of a registry's port
        return image, "latest"
    return repository, tag
