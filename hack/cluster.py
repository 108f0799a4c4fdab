#!/usr/bin/env python3
"""A kind cluster for tests on this machine: `python3 hack/cluster.py --help`, docs/clusters.md."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - no environment has checked it yet
    sys.exit(f"hack/cluster.py needs Python 3.11 or later; this is {sys.version.split()[0]}")

from testbed.cli import main

sys.exit(main())
