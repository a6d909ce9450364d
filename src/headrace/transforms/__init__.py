"""Transforms of images: decoding, pipelines, single steps, and adapters for other libraries."""

from headrace.transforms.adapters import albumentations, torchvision
from headrace.transforms.decoding import decode, size_of
from headrace.transforms.images import EvalImages, TrainImages
from headrace.transforms.jpeg_batches import DecodeJpegs
from headrace.transforms.normalization import Normalize
from headrace.transforms.on_device import kornia
from headrace.transforms.steps import CenterCrop, ColorJitter, RandomHorizontalFlip, RandomResizedCrop, Resize

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "DecodeJpegs",
    "EvalImages",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "TrainImages",
    "albumentations",
    "decode",
    "kornia",
    "size_of",
    "torchvision",
]
