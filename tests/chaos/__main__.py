from __future__ import annotations

import sys

from tests.chaos.command import main

sys.exit(main())
