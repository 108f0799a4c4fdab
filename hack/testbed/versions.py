"""What is built or pulled, pinned: the one place to raise a version.

etcd, coredns and pause must be the versions that this kubeadm asks for; the node image's build
checks that. Kubernetes stays at 1.34 because it is the last line whose kubelet accepts cgroup v1
without being told to.
"""

from typing import Final

KUBERNETES: Final = "v1.34.4"
KIND: Final = "v0.33.0"
HELM: Final = "v3.22.0"
CRICTL: Final = "v1.34.0"
ETCD: Final = "v3.6.5"
COREDNS: Final = "v1.12.1"
DEBIAN: Final = "bookworm"
PROMETHEUS: Final = "v0.312.0"  # the Go module's number for Prometheus 3.12
LLM_D_INFERENCE_SIM: Final = "v0.10.2"  # measured against, by benchmarks/streaming.py

# Of the same Kubernetes line as the node image built here, so that both kinds of cluster agree.
STOCK_NODE_IMAGE: Final = "kindest/node:v1.34.0"
STOCK_NODE_DIGEST: Final = "sha256:7416a61b42b1662ca6ca89f02028ac133a309a2a30ba309614e8ec94d976dc5a"
PUBLIC_BASE_IMAGE: Final = "docker.io/library/python:3.11-slim-bookworm"

# Oldest versions found on the machine that are used instead of ours, (major, minor).
OLDEST_KIND: Final = (0, 30)
OLDEST_HELM: Final = (3, 14)
OLDEST_KUBECTL: Final = (1, 33)
OLDEST_GO: Final = (1, 26)
