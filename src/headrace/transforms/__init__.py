"""Transforms: of images, with adapters for other libraries, and of text for language models."""

from headrace.transforms.adapters import albumentations, torchvision
from headrace.transforms.chat_template import ChatTemplate
from headrace.transforms.decoding import decode, size_of
from headrace.transforms.fill_in_the_middle import FillInTheMiddle
from headrace.transforms.images import EvalImages, TrainImages
from headrace.transforms.jpeg_batches import DecodeJpegs
from headrace.transforms.normalization import Normalize
from headrace.transforms.on_device import kornia
from headrace.transforms.steps import CenterCrop, ColorJitter, RandomHorizontalFlip, RandomResizedCrop, Resize
from headrace.transforms.tokenization import Tokenize

__all__ = [
    "CenterCrop",
    "ChatTemplate",
    "ColorJitter",
    "DecodeJpegs",
    "EvalImages",
    "FillInTheMiddle",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Tokenize",
    "TrainImages",
    "albumentations",
    "decode",
    "kornia",
    "size_of",
    "torchvision",
]
