"""Programs compiled from Go modules, each in a module of its own as their dependencies clash.

CGO is off always: the programs go into images that hold no libc.
"""

import functools
import os
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import versions
from testbed.errors import MissingProgram, TestbedError, Unavailable
from testbed.process import output, run
from testbed.workshop import NODE_FILES, Workshop, recipe_hash

_FLAGS = "-buildvcs=false -mod=mod"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A main package of a module at a version.

    `stamps` are the linker's -X values, `tags` leave parts of the source out or in.
    """

    name: str
    module: str
    package: str
    version: str
    stamps: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The artefact folder's name."""
        key = recipe_hash(self.module, self.package, self.stamps, _FLAGS, *self.tags)
        return f"{self.name}-{self.version}-{architecture()}-{key}"


def _kubernetes(name: str) -> GoProgram:
    major, minor, _ = versions.KUBERNETES.lstrip("v").split(".")
    stamps = (
        f"k8s.io/component-base/version.gitVersion={versions.KUBERNETES}",
        f"k8s.io/component-base/version.gitMajor={major}",
        f"k8s.io/component-base/version.gitMinor={minor}",
        f"k8s.io/client-go/pkg/version.gitVersion={versions.KUBERNETES}",
    )
    module = "k8s.io/kubernetes"
    return GoProgram(name, module, f"{module}/cmd/{name}", versions.KUBERNETES, stamps)


KUBECTL = _kubernetes("kubectl")
APISERVER = _kubernetes("kube-apiserver")
CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
KUBERNETES = (
    _kubernetes("kubeadm"),
    KUBECTL,
    _kubernetes("kubelet"),
    APISERVER,
    CONTROLLER_MANAGER,
    _kubernetes("kube-scheduler"),
    _kubernetes("kube-proxy"),
)
ETCD = GoProgram("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", versions.ETCD)
COREDNS = GoProgram(
    "coredns", "github.com/coredns/coredns", "github.com/coredns/coredns", versions.COREDNS
)
CRICTL = GoProgram(
    "crictl", "sigs.k8s.io/cri-tools", "sigs.k8s.io/cri-tools/cmd/crictl", versions.CRICTL
)
KIND = GoProgram("kind", "sigs.k8s.io/kind", "sigs.k8s.io/kind", versions.KIND)
HELM = GoProgram(
    "helm",
    "helm.sh/helm/v3",
    "helm.sh/helm/v3/cmd/helm",
    versions.HELM,
    (f"helm.sh/helm/v3/internal/version.version={versions.HELM}",),
)
PROMTOOL = GoProgram(
    "promtool",
    "github.com/prometheus/prometheus",
    "github.com/prometheus/prometheus/cmd/promtool",
    versions.PROMETHEUS,
    tags=("remove_all_sd",),  # the clouds' clients: half of the time to compile it
)
LLM_D_INFERENCE_SIM = GoProgram(
    "llm-d-inference-sim",
    "github.com/llm-d/llm-d-inference-sim",
    "github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim",
    versions.LLM_D_INFERENCE_SIM,
)


def architecture() -> str:
    """This machine's architecture in Go's and the image registries' words."""
    machine = platform.machine()
    try:
        return _ARCHITECTURES[machine]
    except KeyError:
        raise Unavailable(f"no cluster can be built for the processor type {machine}") from None


def built(shop: Workshop, program: GoProgram) -> Path:
    """Where the compiled program is, or will be."""
    return shop.artefact("bin", program.folder, program.name)


def ensure_programs(shop: Workshop, title: str, programs: Sequence[GoProgram]) -> None:
    """Compile those programs of one module that are not in the cache, with one call of Go."""
    if all(built(shop, program).exists() for program in programs):
        return
    first = programs[0]
    with shop.lock(f"go-{first.name}-{first.version}"):
        missing = [program for program in programs if not built(shop, program).exists()]
        if missing:
            with shop.console.step(title), shop.scratch() as scratch:
                _compile(scratch, missing, log=shop.log(title))
                for program in missing:
                    target = built(shop, program)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (scratch / "out" / program.name).rename(target)


def ensure_pause(shop: Workshop) -> Path:
    """Compile the program that holds a pod's namespaces open."""
    source = NODE_FILES / "pause.go"

    def make(target: Path, log: Path) -> None:
        module = target.parent / "module"
        module.mkdir()
        shutil.copy(source, module / "main.go")
        run(["go", "mod", "init", "example.invalid/pause"], log=log, cwd=module, env=_go_env())
        argv = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(target), "."]
        run(argv, log=log, cwd=module, env=_go_env())

    folder = f"pause-{architecture()}-{recipe_hash(source, _FLAGS)}"
    return shop.ensure(shop.artefact("bin", folder, "pause"), "compile pause", make)


def staging_modules(go_mod: str) -> list[str]:
    """The modules that Kubernetes' own go.mod takes from its staging folder."""
    return re.findall(r"^\s*(?:replace\s+)?(k8s\.io/[\w.-]+) => \./staging/", go_mod, re.MULTILINE)


def _compile(folder: Path, programs: Sequence[GoProgram], *, log: Path) -> None:
    """Leave the programs, all of one module, in `folder`/out."""
    _require_go()
    env = _go_env()
    first = programs[0]
    run(["go", "mod", "init", f"example.invalid/{first.name}"], log=log, cwd=folder, env=env)
    if first.module == "k8s.io/kubernetes":
        _name_staging_modules(folder, first.version, log=log)
        wanted = [f"{first.module}@{first.version}"]
    else:
        wanted = ["-tool", *(f"{program.package}@{program.version}" for program in programs)]
    run(["go", "get", *wanted], log=log, cwd=folder, env=env)
    (folder / "out").mkdir()
    # Several programs get their packages' last names; one alone is given its own, as the last name
    # of etcd's package is "server".
    out = f"out/{first.name}" if len(programs) == 1 else "out/"
    linker = " ".join(["-s -w", *(f"-X {stamp}" for stamp in first.stamps)])
    tags = ",".join(first.tags)
    packages = [program.package for program in programs]
    command = ["go", "build", "-trimpath", "-tags", tags, "-ldflags", linker, "-o", out, *packages]
    run(command, log=log, cwd=folder, env=env)


def _name_staging_modules(folder: Path, version: str, *, log: Path) -> None:
    """Kubernetes requires its staging modules as v0.0.0: say which published version is meant."""
    described = output(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"],
        cwd=folder,
        env=_go_env(),
        timeout_s=600,
    )
    go_mod = re.search(r'"GoMod": "([^"]+)"', described)
    if go_mod is None:
        raise TestbedError("`go mod download -json` did not say where Kubernetes' go.mod is")
    published = version.replace("v1.", "v0.", 1)
    replaced = [
        f"-replace={name}={name}@{published}"
        for name in staging_modules(Path(go_mod[1]).read_text())
    ]
    run(["go", "mod", "edit", *replaced], log=log, cwd=folder, env=_go_env())


def _go_env() -> dict[str, str]:
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": _FLAGS, "GOWORK": "off"}


@functools.cache
def _require_go() -> None:
    wanted = ".".join(map(str, versions.OLDEST_GO))
    remedy = (
        f"Install Go {wanted} or later (https://go.dev/dl/) and put its bin folder on PATH; "
        "Debian's package is too old."
    )
    needed_for = "compiling the tools of the tests: Kubernetes, kind, helm, promtool"
    if shutil.which("go") is None:
        raise MissingProgram("go", needed_for=needed_for, remedy=remedy)
    said = output(["go", "version"])
    found = re.search(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < versions.OLDEST_GO:
        raise MissingProgram(
            f"Go {wanted}", needed_for=needed_for, remedy=f"Found: {said.strip()}. {remedy}"
        )
