"""headrace: a drop-in superset of `torch.utils.data`."""

from headrace.dataset.image_folder import ImageFolder
from headrace.loader import DataLoader
from headrace.version import __version__

__all__ = ["DataLoader", "ImageFolder", "__version__"]
