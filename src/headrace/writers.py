"""Where the figures of a loader can go while it runs: give one of these as `on_stats=`."""

from headrace.observe.writers import OpenMetricsWriter, TensorBoardWriter

__all__ = ["OpenMetricsWriter", "TensorBoardWriter"]
