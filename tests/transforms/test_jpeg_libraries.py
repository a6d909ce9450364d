"""JPEGs that a library decodes on a CUDA device: which ones, by which calls, and in whose memory.

The libraries and the device are stand-ins, since neither can be had without a GPU; the last test asks the real ones.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing import SimulatedAccelerator
from headrace.transforms import DecodeJpegs, jpeg_libraries
from headrace.transforms.jpeg_libraries import JpegLibrary, decode_on_device, is_for_library, library_for, without_exif
from tests.transforms.jpegs import CMYK, CUT_OFF, HEIGHT, JPEGS, KINDS, OTHER_SIZE, PNG, WIDTH, WITHOUT_JFIF, on_cpu
from tests.transforms.pictures import by_pillow, difference
from tests.transforms.simulated_cuda import CUDA, ImageReadMode, SimulatedCuda, StandIn, forget_libraries

pytestmark = pytest.mark.usefixtures("looked_for_anew")

FRAME = JPEGS[0].index(b"\xff\xc0")
"""Where the frame header of a JPEG begins, which has 19 bytes."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_gets_the_jpegs_that_nvjpeg_lists(kind: str) -> None:
    data, is_for_it = KINDS[kind]
    assert is_for_library(memoryview(data)) is is_for_it


@pytest.mark.quick
@pytest.mark.parametrize(
    ("data", "is_for_it"),
    [
        (WITHOUT_JFIF, True),  # its channels have the numbers 1, 2, 3
        (WITHOUT_JFIF.replace(b"\1\x22\0\2\x11\1\3\x11\1", b"\0\x22\0\1\x11\1\2\x11\1", 1), False),
        (JPEGS[0].replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c", 1), False),  # 12 bits
        (JPEGS[0][: FRAME + 19] + b"\xff\xee\0\7Adobe\xff\xd9", False),  # ends where Adobe's number would stand
        (JPEGS[0].replace(b"\xff\xc0", b"\xff\xc1", 1), False),
        (JPEGS[0].replace(b"\xff\xc0", b"\xff\xc3", 1), False),
        (CUT_OFF, False),
        (b"", False),
        (b"\xff\xd8", False),
    ],
)
def test_a_library_gets_no_jpeg_at_which_it_would_have_to_guess(data: bytes, is_for_it: bool) -> None:
    assert is_for_library(memoryview(data)) is is_for_it


HEADERS = [data for data, _ in KINDS.values()]


@given(
    data=st.sampled_from(HEADERS),
    changes=st.dictionaries(st.integers(0, 700), st.integers(0, 255)),
    end=st.integers(0, 700),
)
def test_no_bytes_keep_a_jpeg_from_being_judged(data: bytes, changes: dict[int, int], end: int) -> None:
    changed = bytearray(data)
    for place, value in changes.items():
        changed[place % len(changed)] = value

    for candidate in (changed, changed[:end] + b"\xff\xd9"):
        assert is_for_library(memoryview(candidate)) in (True, False)
        kept = without_exif(memoryview(candidate + b"\xff\xd9")).numpy().tobytes()
        assert b"Exif\0\0" in candidate or kept == candidate + b"\xff\xd9"


@pytest.mark.quick
@pytest.mark.parametrize("name", ["torchvision", "torchcodec"])
def test_a_library_is_called_once_for_a_batch_with_tensors_of_this_machine(
    name: str, cuda: SimulatedCuda, accelerator: SimulatedAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for torchvision or torchcodec with CUDA, which cannot be had here."""
    library = StandIn(accelerator).installed(name, monkeypatch)
    images = cuda.placed(DecodeJpegs())(JPEGS)
    assert torch.equal(on_cpu(JPEGS), images)

    ((tensors, mode, device),) = library.calls
    assert mode == {"torchvision": ImageReadMode.RGB, "torchcodec": "RGB"}[name]
    assert device == CUDA
    assert [tensor.numpy().tobytes() for tensor in tensors] == JPEGS
    assert {(tensor.dtype, tensor.device.type, tensor.ndim) for tensor in tensors} == {(torch.uint8, "cpu", 1)}


def test_torchcodec_is_asked_first(
    cuda: SimulatedCuda, accelerator: SimulatedAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = StandIn(accelerator).installed("torchvision", monkeypatch)
    parts = {name: sys.modules[name] for name in ("torchvision", "torchvision.io")}
    newer = StandIn(accelerator).installed("torchcodec", monkeypatch)
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, name, part)

    cuda.placed(DecodeJpegs())(JPEGS)
    assert (len(newer.calls), len(older.calls)) == (1, 0)


@pytest.mark.quick
def test_what_a_library_does_not_take_the_cpu_decodes_and_the_order_stays(
    cuda: SimulatedCuda, torchvision: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    batch = [CMYK, JPEGS[0], PNG, OTHER_SIZE, JPEGS[1], CMYK]
    step = cuda.placed(DecodeJpegs(size=(HEIGHT, WIDTH)))
    for _ in range(2):
        assert torch.equal(DecodeJpegs(size=(HEIGHT, WIDTH))(batch), step(batch))

    assert [len(tensors) for tensors, _, _ in torchvision.calls] == [3, 3]
    messages = [record.getMessage() for record in caplog.records if "cuda" in record.getMessage()]
    assert len(messages) == 1
    assert "3 of 6 images are no whole JPEGs of the kinds that nvJPEG lists" in messages[0]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("device", "texts"), [("cpu", [".to(device)"]), ("mps", ["copies their pixels to mps", "type mps"])]
)
def test_no_library_is_looked_for_on_other_devices(
    device: str, texts: list[str], torchvision: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert library_for(torch.device(device)) is None

    (record,) = caplog.records
    for text in texts:
        assert text in record.getMessage()


def test_a_library_that_decodes_none_of_a_batch_is_not_called(cuda: SimulatedCuda, torchvision: StandIn) -> None:
    assert torch.equal(on_cpu([CMYK, PNG]), cuda.placed(DecodeJpegs())([CMYK, PNG]))
    assert torchvision.calls == []


def test_a_library_is_not_told_of_an_orientation(cuda: SimulatedCuda, torchvision: StandIn) -> None:
    turned, _ = KINDS["with EXIF orientation"]
    assert b"Exif\0\0" in turned
    images = cuda.placed(DecodeJpegs())([turned])
    assert torch.equal(on_cpu([turned]), images)

    ((tensors, _, _),) = torchvision.calls
    data = tensors[0].numpy().tobytes()
    assert b"Exif\0\0" not in data
    assert np.array_equal(by_pillow(turned), by_pillow(data))


@pytest.mark.quick
def test_a_batch_that_a_library_refuses_the_cpu_decodes(
    cuda: SimulatedCuda, torchvision: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    torchvision.raises = RuntimeError("Error while decoding JPEG images: Unknown chroma subsampling")
    step = cuda.placed(DecodeJpegs())
    for _ in range(2):
        assert torch.equal(on_cpu(JPEGS), step(JPEGS))

    assert len(torchvision.calls) == 2
    (record,) = caplog.records
    assert "torchvision refused a batch (Error while decoding JPEG images: Unknown chroma" in record.getMessage()
    assert "cuda:0" in record.getMessage()


@pytest.mark.quick
@pytest.mark.parametrize("kind", jpeg_libraries.BROKEN_DEVICE)
def test_an_error_of_the_device_is_not_taken_for_a_refusal(
    kind: type[Exception], cuda: SimulatedCuda, torchvision: StandIn
) -> None:
    torchvision.raises = kind("out of memory")
    with pytest.raises(kind, match="out of memory"):
        cuda.placed(DecodeJpegs())(JPEGS)


@pytest.mark.quick
@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'decode_jpeg'"),
        RuntimeError("operator torchvision::nms does not exist"),
        OSError("libnvjpeg.so.12: cannot open shared object file"),
        AttributeError("partially initialized module 'torchvision' has no attribute 'extension'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_library_that_cannot_be_imported_is_as_none(
    error: Exception, cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked_for = []

    class Broken:
        """Finds both libraries, and fails in importing them, as those do that were built for another torch."""

        def find_spec(self, name: str, *_: Any) -> None:
            if name in ("torchvision", "torchcodec"):
                looked_for.append(name)
                raise error

    for name in ("torchvision", "torchcodec", "torchvision.io", "torchcodec.decoders"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])

    step = cuda.placed(DecodeJpegs())
    for _ in range(3):
        assert torch.equal(on_cpu(JPEGS), step(JPEGS))

    assert looked_for == ["torchcodec", "torchvision"]  # once, as it may take a second each
    (record,) = caplog.records
    for text in (f"torchcodec: {error}; torchvision: {error}", "install torchcodec", "EvalImages", "cuda:0"):
        assert text in record.getMessage()


@pytest.mark.quick
def test_a_library_never_writes_to_memory_that_the_loops_stream_still_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """By stand-ins that write when the real libraries do: without waiting for what the caller's stream has to do."""
    known = bytes(range(256)) * (3 * HEIGHT * WIDTH // 256)
    for seed in range(20):
        forget_libraries()
        with SimulatedAccelerator(seed) as accelerator, monkeypatch.context() as patch:
            cuda = SimulatedCuda(accelerator, patch)
            StandIn(accelerator).installed("torchvision", patch)
            step = cuda.placed(DecodeJpegs())
            read: list[bytes] = []
            for _ in range(3):
                # What the loop had: written and read on its stream at some time, and freed before that.
                memory = accelerator.empty(3 * HEIGHT * WIDTH)
                accelerator.write(memory, known)
                accelerator.seen(memory, read.append)
                del memory
                assert torch.equal(on_cpu(JPEGS[:1]), step(JPEGS[:1]))

            accelerator.synchronize()
            assert read == [known] * 3, seed


@pytest.mark.quick
def test_the_loops_stream_gets_whole_images_and_keeps_them_as_long_as_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for a library that comes back before all is written, as a later one might."""
    encoded = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in JPEGS]
    expected = [image.numpy().tobytes() for image in on_cpu(JPEGS)]
    for seed in range(20):
        forget_libraries()
        with SimulatedAccelerator(seed) as accelerator, monkeypatch.context() as patch:
            SimulatedCuda(accelerator, patch)
            library = JpegLibrary("a late one", StandIn(accelerator, is_late=True).decode)
            read: list[bytes] = []
            for number in (0, 1, 2, 3, 4):
                images = decode_on_device(library, encoded[number : number + 1], CUDA)
                assert images is not None
                accelerator.seen(images[0], read.append)
                del images

            accelerator.synchronize()
            assert read == expected, seed


def test_the_real_library_makes_nearly_the_pixels_of_the_cpu() -> None:
    """The real torchcodec or torchvision on a real device. 2 of 255 is the mean that torchvision's own tests allow."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: DecodeJpegs was not tried with a real library")
    library, missing = jpeg_libraries._installed()
    if library is None:
        pytest.skip(f"neither torchcodec nor torchvision decodes here: {missing}")

    progressive, _ = KINDS["progressive"]
    gray, _ = KINDS["gray"]
    turned, _ = KINDS["with EXIF orientation"]
    batch = [*JPEGS, progressive, gray, turned, CMYK, PNG]
    step = DecodeJpegs().to("cuda")
    expected = on_cpu(batch)
    for _ in range(3):
        images = step(batch)
        assert images.device.type == "cuda"
        far = difference(expected, images.cpu())
        assert far.mean(axis=(1, 2, 3)).max() < 2
        assert far[-2:].max() == 0  # the CPU's
