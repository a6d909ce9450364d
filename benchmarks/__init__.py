"""What loaders cost, measured beside torch's and other libraries: `python -m benchmarks`.

A benchmark is a function that returns tables. Its parameters are the options of its command, and `catalog.py` has a
line for it. `harness/` has what all share: `turns.py` lets contenders take turns and compares what they bring,
`table.py` holds the figures, `sections.py` and `pictures.py` make text and pictures of them, `page.py` keeps
docs/benchmarks/figures.md. `datasets.py`, `ready_samples.py`, `buckets.py` and `swipes.py` have data of several
benchmarks, `peers.py` and `slow_line.py` other libraries and a network.

`device.py` has a command of its own, since it needs a GPU: `python -m benchmarks.device`. Its experiments are in
`device_copies.py`, `device_loops.py` and `device_kernels.py`.
"""
