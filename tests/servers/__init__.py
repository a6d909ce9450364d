"""Real servers for tests: each test starts its own, on a free port of this machine, and ends it.

`servers.py` has the fixtures; `tests/conftest.py` makes them known.
"""
