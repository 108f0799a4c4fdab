"""The yardstick of `streaming.py time`: what the machine allows a server that does nothing else.

    bare_pacer.py STREAMS PASS_MS

Takes STREAMS connections, then sends each one prepared event per pass, as many as the requests'
`max_tokens`: a blocking loop over plain sockets, asleep until the next deadline. Prints its port.
"""

import json
import socket
import sys
import time

EVENT = b"data: " + b"x" * 200 + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def accepted(listener: socket.socket) -> tuple[socket.socket, int]:
    """Return a connection with a request for tokens, and how many it asks for."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as lines:
            length = 0
            while (line := lines.readline().strip().lower()) != b"":
                name, _, value = line.partition(b":")
                if name == b"content-length":
                    length = int(value)
            if length:
                return connection, json.loads(lines.read(length))["max_tokens"]
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        connection.close()


def main(streams: int, pass_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=streams) as listener:
        print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        taken = [accepted(listener) for _ in range(streams)]
    connections = [connection for connection, _ in taken]
    for connection in connections:
        connection.sendall(HEAD)
    deadline_s = time.monotonic()
    for _ in range(min(tokens for _, tokens in taken) + 2):
        deadline_s += pass_s
        time.sleep(max(deadline_s - time.monotonic(), 0))
        for connection in connections:
            connection.sendall(CHUNK)
    for connection in connections:
        connection.sendall(b"0\r\n\r\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) / 1000)
