"""Arrow arrays of every type, three values each and more."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

UTC = datetime.UTC
DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)
OLD = datetime.datetime(1905, 1, 2, 3, 4, 5)
WORDS = ["", "Grüße", "日本 🙂", 'a,b;"c"\n\td', "e\u0301", "x" * 40]
RAW = [b"", b"\x00\xff", b"abc" * 20]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def numbers() -> Iterator[tuple[str, pa.Array]]:
    """Whole numbers at their limits, floating point, and truth values."""
    for name in INTEGERS:
        limits = np.iinfo(name)
        yield name, pa.array([limits.min, limits.max, 1, 0], name)
        yield f"{name} and null", pa.array([1, None, 2], name)
    for name in ("float16", "float32", "float64"):
        tiny = np.finfo(name).smallest_subnormal
        yield name, pa.array(np.array([0.1, -0.0, np.inf, -np.inf, np.nan, tiny], name))
        yield f"{name} and null", pa.array([np.dtype(name).type(1.5), None], name)
    yield "bool", pa.array([True, False, True] * 5)
    yield "bool and null", pa.array([True, None, False])
    yield "null", pa.nulls(3)


def words() -> Iterator[tuple[str, pa.Array]]:
    """Text and bytes in each layout."""
    for name in ("string", "large_string", "string_view"):
        yield name, pa.array(WORDS, getattr(pa, name)())
    yield "string and null", pa.array(["a", None, ""])
    yield "all strings empty", pa.array(["", "", ""])
    for name in ("binary", "large_binary", "binary_view"):
        yield name, pa.array(RAW, getattr(pa, name)())
    yield "binary and null", pa.array([b"a", None])
    yield "fixed_size_binary", pa.array([b"abcd", b"\0\0\0\0"], pa.binary(4))
    yield "fixed_size_binary and null", pa.array([b"abcd", None], pa.binary(4))
    yield "dictionary", pa.array(["cat", "dog", "cat"]).dictionary_encode()
    yield "dictionary of large_string", pa.array(["cat", "dog"], pa.large_string()).dictionary_encode()
    yield (
        "dictionary of string_view",
        pa.array(["cat", "dog", "a word of more than twelve"], pa.string_view()).dictionary_encode(),
    )
    yield "dictionary of int64", pa.array([2**40, 3, 2**40]).dictionary_encode()
    yield "dictionary and null", pa.array(["cat", None]).dictionary_encode()
    small = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.uint8()), pa.array(["a", "b"]), ordered=True)
    yield "ordered dictionary of uint8", small
    yield "dictionary with null among its words", pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))


def times() -> Iterator[tuple[str, pa.Array]]:
    """Dates, times of the day, timestamps with and without a zone, and durations."""
    yield "date32", pa.array([DAY, datetime.date(1969, 12, 31)], pa.date32())
    yield "date64", pa.array([DAY, datetime.date(1969, 12, 31)], pa.date64())
    for unit in ("s", "ms"):
        yield f"time32 {unit}", pa.array([3661, 0], pa.time32(unit))
    for unit in ("us", "ns"):
        yield f"time64 {unit}", pa.array([3_661_000_000, 0], pa.time64(unit))
    for unit in ("s", "ms", "us", "ns"):
        moments = [MOMENT.replace(microsecond=0), OLD]
        yield f"timestamp {unit}", pa.array(moments, pa.timestamp(unit))
        yield f"timestamp {unit} of UTC", pa.array(moments, pa.timestamp(unit, "UTC"))
        yield f"timestamp {unit} of Berlin", pa.array(moments, pa.timestamp(unit, "Europe/Berlin"))
        yield f"duration {unit}", pa.array([-5, 3600], pa.duration(unit))
    yield "timestamp of one nanosecond", pa.array([1, 1_000], pa.timestamp("ns"))
    yield "time64 of one nanosecond", pa.array([1, 1_000], pa.time64("ns"))
    yield "duration of one nanosecond", pa.array([1, 1_000], pa.duration("ns"))
    yield "timestamp of the year 3000", pa.array([datetime.datetime(3000, 1, 1)], pa.timestamp("s"))
    yield "timestamp beyond microseconds", pa.array([2**62], pa.timestamp("s"))
    yield "date64 with hours", pa.array([3_600_000 * 30], pa.int64()).view(pa.date64())
    yield "timestamp and null", pa.array([MOMENT, None], pa.timestamp("us"))
    yield "date32 and null", pa.array([DAY, None], pa.date32())
    interval = [pa.MonthDayNano([1, 2, 3])]
    yield "month_day_nano_interval", pa.array(interval, pa.month_day_nano_interval())


def decimals() -> Iterator[tuple[str, pa.Array]]:
    """Decimals, small and of more digits than a float64 has."""
    yield "decimal32", pa.array([Decimal("1.25"), Decimal("-0.50")], pa.decimal32(7, 2))
    yield "decimal64", pa.array([Decimal("1.1"), Decimal("-0.3")], pa.decimal64(12, 1))
    yield "decimal128", pa.array([Decimal("1.10"), Decimal("99999.99")], pa.decimal128(9, 2))
    yield "decimal128 of 20 digits", pa.array([Decimal(2**60 + 1), Decimal(2**60 + 2)], pa.decimal128(20, 0))
    yield "decimal128 of 30 digits", pa.array([Decimal("0.123456789012345678901234567890")], pa.decimal128(31, 30))
    yield "decimal128 of negative scale", pa.array([Decimal("1200")], pa.decimal128(5, -2))
    yield "decimal256", pa.array([Decimal(10**50 + 1)], pa.decimal256(60, 0))
    yield "decimal128 and null", pa.array([Decimal("1.10"), None], pa.decimal128(9, 2))


def lists() -> Iterator[tuple[str, pa.Array]]:
    """Lists of every layout, and what may lie in them."""
    rows = [[1, 2, 3], [], [4]]
    for name in ("list_", "large_list", "list_view", "large_list_view"):
        kind = getattr(pa, name)
        yield f"{name} of int16", pa.array(rows, kind(pa.int16()))
        yield f"{name} of float32", pa.array([[0.5], [1.5, np.nan]], kind(pa.float32()))
        yield f"{name} of string", pa.array([["a"], ["b", ""]], kind(pa.string()))
    for element in (*INTEGERS, "float16", "float64", "bool"):
        inner = pa.array(np.array([1, 0, 1, 1], element))
        yield f"list of {element}", pa.ListArray.from_arrays([0, 3, 3, 4], inner)
    yield "list and null", pa.array([[1], None, [2]], pa.list_(pa.int32()))
    yield "list with null in it", pa.array([[1, None], [2]], pa.list_(pa.int32()))
    yield "list of float with null in it", pa.array([[1.5, None], [2.5]], pa.list_(pa.float64()))
    yield "fixed_size_list", pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    yield "fixed_size_list and null", pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    yield "fixed_size_list with null in it", pa.array([[1, None], [3, 4]], pa.list_(pa.int32(), 2))
    yield "fixed_size_list of bool", pa.array([[True, False], [False, True]], pa.list_(pa.bool_(), 2))
    yield "fixed_size_list of string", pa.array([["a", "b"]], pa.list_(pa.string(), 2))
    yield "fixed_size_list of length 0", pa.array([[], []], pa.list_(pa.int32(), 0))
    yield "list of list", pa.array([[[1], [2, 3]], []], pa.list_(pa.list_(pa.int64())))
    yield "list of fixed_size_list", pa.array([[[1, 2]], []], pa.list_(pa.list_(pa.int64(), 2)))
    yield "fixed_size_list of list", pa.array([[[1], [2, 3]]], pa.list_(pa.list_(pa.int64()), 2))
    yield "list of timestamp", pa.array([[MOMENT]], pa.list_(pa.timestamp("us")))
    yield "list of date32", pa.array([[DAY]], pa.list_(pa.date32()))
    yield "list of decimal128", pa.array([[Decimal("1.5")]], pa.list_(pa.decimal128(5, 1)))
    yield "list of dictionary", pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    yield "list of binary", pa.array([[b"a"], [b"b", b""]], pa.list_(pa.binary()))
    yield "list of struct", pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int64())])))


def nested() -> Iterator[tuple[str, pa.Array]]:
    """Structs, maps, unions and tensors."""
    yield "struct", pa.array([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
    yield "struct and null", pa.array([{"x": 1}, None])
    yield "struct of list", pa.array([{"x": [1, 2]}])
    yield "map", pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    storage = pa.array([[1, 2, 3, 4, 5, 6]] * 2, pa.list_(pa.float32(), 6))
    yield "fixed_shape_tensor", pa.ExtensionArray.from_storage(tensor, storage)
    turned = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    yield "fixed_shape_tensor with a permutation", pa.ExtensionArray.from_storage(turned, storage)
    yield "uuid", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    yield "json", pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}']))
    yield "bool8", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1], pa.int8()))


def unions() -> Iterator[tuple[str, pa.Array]]:
    """What Arrow has, and Parquet has not."""
    tags = pa.array([0, 1], pa.int8())
    yield "dense_union", pa.UnionArray.from_dense(tags, pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])])
    yield "sparse_union", pa.UnionArray.from_sparse(tags, [pa.array([1, 2]), pa.array(["a", "b"])])
    yield "run_end_encoded", pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, 8]))


def sliced() -> Iterator[tuple[str, pa.Array]]:
    """A part of longer arrays, whose memory begins before it."""
    for name, array in (
        ("int32", pa.array(range(20), pa.int32())),
        ("bool", pa.array([True, False, False] * 7)),
        ("string", pa.array([str(number) for number in range(20)])),
        ("list", pa.array([[number] * (number % 3) for number in range(20)])),
        ("fixed_size_list", pa.array([[number, 1] for number in range(20)], pa.list_(pa.int8(), 2))),
        ("dictionary", pa.array(["a", "b", "c", "d"] * 5).dictionary_encode()),
        ("fixed_size_binary", pa.array([bytes([number] * 3) for number in range(20)], pa.binary(3))),
        ("list_view", pa.array([[number] * 2 for number in range(20)], pa.list_view(pa.int32()))),
        ("string_view", pa.array([str(number) * 9 for number in range(20)], pa.string_view())),
        ("timestamp", pa.array(range(20), pa.timestamp("us"))),
    ):
        yield f"{name}, sliced", array.slice(3, 11)


def all_types() -> Iterator[tuple[str, pa.Array]]:
    """Every type that Parquet has a word for, too."""
    for group in (numbers, words, times, decimals, lists, nested, sliced):
        yield from group()


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns what pyarrow reads, with NumPy's numbers where these have the type."""
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
        return [tensor for chunk in chunks for tensor in chunk.to_numpy_ndarray()]
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid":
        return [value.bytes for value in array.to_pylist()]
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if number and not array.null_count:
        return list(array.to_numpy(zero_copy_only=False)) if isinstance(array, pa.Array) else list(array.to_numpy())
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return _moments(array)
    return list(array.to_pylist())


def _moments(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns times as NumPy's, which have nanoseconds."""
    kind = array.type
    code = "m8" if pa.types.is_duration(kind) else "M8"
    whole = array.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else array.cast(pa.int64())
    return [None if one is None else np.int64(one).astype(f"{code}[{kind.unit}]") for one in whole.to_pylist()]


def unit_of(kind: pa.DataType) -> str:
    """Returns the unit in which headrace holds dates and times of a type."""
    if pa.types.is_date(kind):
        return "D"
    return "us"
