"""A slow line to a server on this machine: delay and rate, for all connections together.

    python benchmarks/slow_line.py --to 127.0.0.1:8080 --port 8081 --round-trip 0.02 --rate 1e9

Linux's netem does this better, where the kernel has it (`tc qdisc add dev ... root netem delay 10ms rate 1gbit`). This
one needs no rights and no kernel module. What a client sends is passed on after half of the round trip; what the server
answers takes its turn on the one line, at its rate, and arrives after the other half. A new connection takes a round
trip, too. There are no lost packets and no slow start: real lines are worse.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

CHUNK = 128 << 10
AHEAD = 0.02
"""Seconds of bytes that wait for the line, at most, before nothing more is taken from the server."""


class Line:
    """The direction from the server: bytes take their turn."""

    def __init__(self, rate: float) -> None:
        """rate: bits a second."""
        self._seconds_a_byte = 8 / rate
        self._free_at = 0.0
        self.bytes = 0

    async def send(self, count: int) -> float:
        """Waits until there is room on the line. Returns when these bytes will have gone over it."""
        now = asyncio.get_running_loop().time()
        while self._free_at > now + AHEAD:
            await asyncio.sleep(self._free_at - now - AHEAD)
            now = asyncio.get_running_loop().time()

        self._free_at = max(self._free_at, now) + count * self._seconds_a_byte
        self.bytes += count
        return self._free_at


class SlowLine:
    """Serves a port whose connections lead to another one, slowly."""

    def __init__(self, target: tuple[str, int], round_trip: float, rate: float) -> None:
        self._target = target
        self._half = round_trip / 2
        self.line = Line(rate)

    async def serve(self, port: int, ready: Callable[[int], None]) -> None:
        """Serves until it is cancelled. ready: called with the port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=CHUNK)
        ready(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._half)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target, limit=CHUNK)
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
        under_way: deque[tuple[float, bytes]] = deque()
        more = asyncio.Event()

        async def deliver() -> None:
            while True:
                while not under_way:
                    more.clear()
                    await more.wait()

                arrives, data = under_way.popleft()
                if (left := arrives - loop.time()) > 0:
                    await asyncio.sleep(left)
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                gone = loop.time()
                if line is not None:
                    gone = await line.send(len(data))
                under_way.append((gone + self._half, data))
                more.set()

        under_way.append((loop.time() + self._half, b""))
        more.set()
        with contextlib.suppress(OSError):
            await delivering


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="host:port of the server")
    parser.add_argument("--port", type=int, default=0, help="where to listen; any free one if it is not given")
    parser.add_argument("--round-trip", type=float, default=0.02, help="seconds")
    parser.add_argument("--rate", type=float, default=1e9, help="bits a second")
    given = parser.parse_args()
    host, _, port = given.to.rpartition(":")
    slow = SlowLine((host, int(port)), given.round_trip, given.rate)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(slow.serve(given.port, lambda port: print(f"listening on 127.0.0.1:{port}", flush=True)))


if __name__ == "__main__":
    main()
