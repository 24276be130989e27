"""What TCP alone carries between two machines, in both directions at once: duplex.py ADDRESS [listen]

Prints the rate in Mbit/s: the median of several exchanges."""
import socket
import statistics
import sys
import threading
import time

PORT = 29400
BYTES = 25 << 20
TIMES = 5


def connected(address, listen):
    if listen:
        with socket.create_server((address, PORT)) as server:
            server.settimeout(30)
            return server.accept()[0]
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=30)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def receive(connection, size):
    buffer = memoryview(bytearray(1 << 20))
    while size > 0:
        got = connection.recv_into(buffer[:min(size, len(buffer))])
        if got == 0:
            raise OSError("the connection was closed")
        size -= got


def exchange(connection):
    connection.sendall(b"x")
    receive(connection, 1)
    begin = time.monotonic()
    receiver = threading.Thread(target=receive, args=(connection, BYTES))
    receiver.start()
    connection.sendall(bytes(BYTES))
    receiver.join()
    return time.monotonic() - begin


def main():
    with connected(sys.argv[1], "listen" in sys.argv) as connection:
        connection.settimeout(60)
        print(BYTES * 8 / 1e6 / statistics.median(exchange(connection) for _ in range(TIMES)))


main()
