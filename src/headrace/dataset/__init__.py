"""Things with a length and items: map-style data sets."""

from headrace.dataset.image_folder import ImageFolder

__all__ = ["ImageFolder"]
