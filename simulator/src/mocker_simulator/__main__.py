"""`python -m mocker_simulator` is `mocker-simulator`."""

import sys

from mocker_simulator.cli import main

sys.exit(main())
