"""Messages between machines, and who may send them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.code import check_versions, versions
from headrace.core.errors import ClusterError
from headrace.workers.remote.wire import LostError, Wire, authenticate


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    one, other = map(Wire, connected())
    yield one, other
    one.close()
    other.close()


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    content=st.recursive(st.integers() | st.text() | st.none(), st.lists),
    sizes=st.lists(st.integers(0, 300_000), max_size=80),
)
def test_a_message_comes_as_it_was_sent(content: Any, sizes: list[int]) -> None:
    one, other = map(Wire, connected())
    buffers = [os.urandom(size) for size in sizes]
    sender = threading.Thread(target=one.send, args=("kind", content, [memoryview(buffer) for buffer in buffers]))
    sender.start()
    message = other.receive()
    came = []
    for size in message.sizes:
        target = bytearray(size)
        other.read_into(memoryview(target))
        came.append(bytes(target))

    sender.join()
    one.close()
    other.close()
    assert (message.kind, message.content) == ("kind", content)
    assert [buffer for buffer in buffers if buffer] == came


def test_messages_of_several_threads_do_not_mix(wires: tuple[Wire, Wire]) -> None:
    one, other = wires
    data = {name: memoryview(name.encode() * 100_000) for name in "abcd"}
    threads = [
        threading.Thread(target=lambda name=name: [one.send(name, None, [data[name]]) for _ in range(5)])
        for name in data
    ]
    for thread in threads:
        thread.start()
    for _ in range(20):
        message = other.receive()
        target = bytearray(message.sizes[0])
        other.read_into(memoryview(target))
        assert target == data[message.kind]
    for thread in threads:
        thread.join()


def test_an_end_in_the_middle_of_a_message_is_a_loss(wires: tuple[Wire, Wire]) -> None:
    one, other = wires
    one._socket.sendall(b"\0\0\1\0half of it")
    one.close()
    with pytest.raises(LostError, match="closed the connection"):
        other.receive()


def test_silence_is_a_loss(wires: tuple[Wire, Wire]) -> None:
    _, other = wires
    other.wait_at_most(0.05)
    with pytest.raises(LostError, match=r"nothing came .* for 0\.05 s"):
        other.receive()


@pytest.mark.parametrize(("theirs", "is_known"), [(b"key", True), (b"another", False), (b"", False)])
def test_only_who_knows_the_key_gets_in(theirs: bytes, is_known: bool) -> None:
    one, other = connected()
    refused: list[Exception] = []

    def serve() -> None:
        try:
            authenticate(other, b"key", as_server=True)
        except ClusterError as error:
            refused.append(error)

    server = threading.Thread(target=serve)
    server.start()
    if is_known:
        authenticate(one, theirs, as_server=False)
    else:
        with pytest.raises(ClusterError, match="does not know the key"):
            authenticate(one, theirs, as_server=False)

    server.join()
    one.close()
    other.close()
    assert bool(refused) != is_known


def test_a_proof_cannot_be_sent_back_to_its_sender() -> None:
    one, other = connected()
    server = threading.Thread(target=_swallow_refusal, args=(other,))
    server.start()
    nonce = one.recv(32, socket.MSG_WAITALL)
    one.sendall(nonce)
    proof = one.recv(32, socket.MSG_WAITALL)
    one.sendall(proof)
    server.join()
    assert one.recv(1) == b""
    one.close()


def _swallow_refusal(connection: socket.socket) -> None:
    with pytest.raises(ClusterError):
        authenticate(connection, b"key", as_server=True)
    connection.close()


def test_versions_that_differ_are_named() -> None:
    check_versions(versions(), "cpu1")
    with pytest.raises(ClusterError) as caught:
        check_versions(versions() | {"torch": "1.0", "Python": "3.10"}, "cpu1")
    text = str(caught.value)
    assert "place:    cpu1" in text
    assert "found:    Python 3.10, torch 1.0" in text
    assert f"torch {versions()['torch']}" in text
