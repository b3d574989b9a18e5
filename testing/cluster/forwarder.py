"""Carries connections from the host's loopback into a cluster's network.

The listening socket is opened on the host and handed over; a socket stays in the network it was
opened in, while this process, started inside, opens its own connections there. It is run as a
file of its own, so it imports nothing of this package.
"""

import asyncio
import contextlib
import functools
import socket
import sys

CHUNK = 64 * 1024


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy one direction to its end, and pass the end on, also when it came as a reset."""
    with contextlib.suppress(OSError):
        while chunk := await source.read(CHUNK):
            target.write(chunk)
            await target.drain()
    with contextlib.suppress(OSError):
        if target.can_write_eof():
            target.write_eof()
        else:  # TLS ends both directions at once.
            target.close()


async def connect(
    host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Join one accepted connection with one that is opened to the target."""
    try:
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))
    for side in (inner_writer, writer):
        side.close()


async def serve(descriptor: int, host: str, port: int) -> None:
    """Serve the inherited socket until the process is ended."""
    server = await asyncio.start_server(
        functools.partial(connect, host, port), sock=socket.socket(fileno=descriptor)
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
