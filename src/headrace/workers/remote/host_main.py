"""The program of a host: `python -m headrace.workers.remote.host_main DESCRIPTOR`."""

from __future__ import annotations

import sys

from headrace.workers.remote.host import run_host

if __name__ == "__main__":
    run_host(int(sys.argv[1]))
