"""A slow line to a server on this machine: delay and rate, for all connections together.

Linux's netem does this better, where the kernel has it (`tc qdisc add dev ... root netem delay 10ms rate 1gbit`). This
one needs no rights and no kernel module. What a client sends is passed on after half of the round trip; what the server
answers takes its turn on the one line, at its rate, and arrives after the other half. A new connection takes a round
trip, too. There are no lost packets and no slow start: real lines are worse.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.harness.turns import beside

CHUNK = 128 << 10
AHEAD = 0.02
"""Seconds of bytes that wait for the line, at most, before nothing more is taken from the server."""


@contextlib.contextmanager
def running(port: int, round_trip: float, rate: float) -> Iterator[int]:
    """Runs a line to a port of this machine, in a process of its own, until the block ends. Yields its own port.

    round_trip: seconds. rate: bits a second.
    """
    with beside(_run, port, round_trip, rate) as connection:
        yield connection.recv()


def _run(answer: Connection, port: int, round_trip: float, rate: float) -> None:
    asyncio.run(SlowLine(port, round_trip, rate).serve(answer))


class Line:
    """The direction from the server: bytes take their turn."""

    def __init__(self, rate: float) -> None:
        """rate: bits a second."""
        self._seconds_a_byte = 8 / rate
        self._free_at = 0.0

    async def send(self, count: int) -> float:
        """Waits until there is room on the line. Returns when these bytes will have gone over it."""
        now = asyncio.get_running_loop().time()
        while self._free_at > now + AHEAD:
            await asyncio.sleep(self._free_at - now - AHEAD)
            now = asyncio.get_running_loop().time()

        self._free_at = max(self._free_at, now) + count * self._seconds_a_byte
        return self._free_at


class SlowLine:
    """Serves a port whose connections lead to another one, slowly."""

    def __init__(self, target: int, round_trip: float, rate: float) -> None:
        self._target = target
        self._half = round_trip / 2
        self.line = Line(rate)

    async def serve(self, answer: Connection) -> None:
        """Serves until the process is ended. answer: is sent the port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=CHUNK)
        answer.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._half)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target, limit=CHUNK)
        except OSError:
            writer.close()
            return

        await asyncio.gather(
            self._pass_on(reader, there_writer, None),
            self._pass_on(there_reader, writer, self.line),
            return_exceptions=True,
        )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line | None) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                arrives, data = await under_way.get()
                await asyncio.sleep(max(arrives - loop.time(), 0))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        delivering = asyncio.create_task(deliver())
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                gone = loop.time() if line is None else await line.send(len(data))
                under_way.put_nowait((gone + self._half, data))

        under_way.put_nowait((loop.time() + self._half, b""))
        with contextlib.suppress(OSError):
            await delivering
