#!/usr/bin/env python3
"""Foreign programs that judge ours: `python3 hack/judges.py --help`, docs/judges.md."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - no environment has checked it yet
    sys.exit(f"hack/judges.py needs Python 3.11 or later; this is {sys.version.split()[0]}")

from testbed.judges_cli import main

sys.exit(main())
