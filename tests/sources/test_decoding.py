"""Records in every form that `decode=` knows, each written by its own library."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pyarrow as pa
import pytest
import torch

import headrace
from headrace.core.errors import FormatError, SampleError
from headrace.data.live.decoding import block_of, decoder_of, schema_of

fastavro = pytest.importorskip("fastavro")
msgpack = pytest.importorskip("msgpack")
pytest.importorskip("confluent_kafka")

ROWS = [{"id": number, "x": number / 2, "v": [1.5, number], "s": f"no. {number}"} for number in range(20)]

SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "x", "type": "double"},
        {"name": "v", "type": {"type": "array", "items": "double"}},
        {"name": "s", "type": "string"},
    ],
}


def as_avro(row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, row)
    return b"\0\0\0\0\7" + out.getvalue()


def as_avro_file(row):
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, [row])
    return out.getvalue()


def as_arrow(row):
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist([row])
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


WRITERS = {
    "json": lambda row: json.dumps(row).encode(),
    "msgpack": msgpack.packb,
    "avro": as_avro,
    "avro-file": as_avro_file,
    "arrow": as_arrow,
}


class Registry(BaseHTTPRequestHandler):
    """Answers as a schema registry does."""

    def do_GET(self):
        known = self.path == "/schemas/ids/7" and self.headers["Authorization"] == "Basic bWU6Z2VoZWlt"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"schema": json.dumps(SCHEMA)}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def registry():
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("form", "collate"), [("json", list), *((form, None) for form in WRITERS)])
def test_records_with_fields(shared_kafka, registry, form, collate):
    topic = f"form-{form}-{collate is None}"
    shared_kafka.make_topic(topic, 1)
    shared_kafka.produce(topic, list(map(WRITERS[form], ROWS)))
    options = {
        "schema.registry.url": registry,
        "schema.registry.basic.auth.user.info": "me:geheim",
    }
    data = headrace.follow(shared_kafka.url(topic), decode=form.partition("-")[0], until=20, options=options)
    loader = headrace.DataLoader(data, batch_size=20, collate_fn=collate)
    (batch,) = loader
    if collate is None:
        assert batch["id"].tolist() == list(range(20))
        assert batch["id"].dtype == torch.int64
        assert torch.equal(batch["v"], torch.tensor([row["v"] for row in ROWS], dtype=torch.float64))
        assert batch["s"] == [row["s"] for row in ROWS]
    else:
        assert [int(sample["id"]) for sample in batch] == list(range(20))
        assert batch[3]["v"].tolist() == ROWS[3]["v"]
        assert batch[3]["s"] == ROWS[3]["s"]


def test_columns(shared_kafka):
    shared_kafka.make_topic("columns", 1)
    shared_kafka.produce("columns", list(map(WRITERS["json"], ROWS)))
    (batch,) = headrace.DataLoader(
        headrace.follow(shared_kafka.url("columns"), ["x", "id"], decode="json", until=20), batch_size=20
    )
    assert list(batch) == ["x", "id"]


def test_arrays(shared_kafka):
    shared_kafka.make_topic("arrays", 1)
    messages = []
    for number in range(4):
        out = io.BytesIO()
        np.save(out, np.full((2, 3), number, np.float32))
        messages.append(out.getvalue())
    shared_kafka.produce("arrays", messages)
    (batch,) = headrace.DataLoader(
        headrace.follow(shared_kafka.url("arrays"), decode="npy", until=4), batch_size=4, num_workers=1
    )
    assert torch.equal(batch[:, 1, 1], torch.arange(4, dtype=torch.float32))


def test_pickles_in_arrays_are_refused():
    out = io.BytesIO()
    np.save(out, np.array([object()], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        decoder_of("npy", {})(out.getvalue())


def test_lists_of_any_length_come_padded(shared_kafka):
    shared_kafka.make_topic("ragged", 1)
    shared_kafka.produce("ragged", [b'{"v": [1, 2]}', b'{"v": []}', b'{"v": [3.5]}'])
    (batch,) = headrace.DataLoader(headrace.follow(shared_kafka.url("ragged"), decode="json", until=3), batch_size=3)
    assert isinstance(batch["v"], headrace.types.Padded)
    assert batch["v"].lengths.tolist() == [2, 0, 1]
    assert batch["v"].values.tolist() == [[1, 2], [0, 0], [3.5, 0]]


def test_what_records_have_in_common():
    schema, left_out = schema_of([{"a": 1, "b": 2.5, "c": {}}, {"a": 2, "b": 1, "d": 0}], "here")
    assert [(field.name, field.dtype.name) for field in schema] == [("a", "int64"), ("b", "float64")]
    assert sorted(left_out) == ["c (mappings)", "d (in 1 of 2 records)"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([{"x": 1}, {"x": 2}], "mappings"),
        ([[{"x": 1}], []], "lists that are not all of numbers of one shape after the first dimension"),
        ([1, "a"], "text and whole numbers"),
        ([None, None], "null"),
        ([1 << 63, 1], "whole numbers of more than 63 bits"),
    ],
)
def test_fields_that_a_batch_cannot_hold_are_named_with_the_reason(values, reason):
    _, left_out = schema_of([{"a": 1.0, "b": value} for value in values], "here")
    assert left_out == [f"b ({reason})"]


def test_records_without_a_usable_field():
    with pytest.raises(FormatError, match="no field"):
        schema_of([{"a": None}, {"a": {}}], "here")


@pytest.mark.parametrize("wrong", [{"a": "x", "b": 1.0}, {"a": 1.5, "b": 1.0}, {"b": 1.0}, 7, {"a": 1, "b": [1.0]}])
def test_a_record_that_does_not_fit(wrong):
    schema, _ = schema_of([{"a": 1, "b": 2.5}], "here")
    with pytest.raises(SampleError, match=r"a: int64|b: float64"):
        block_of(schema, [{"a": 1, "b": 2}, wrong])
