"""The kernel's end of one rank: its socket, the pipe that it writes its output to, and its process."""

import os
import select
import signal
import socket

from . import messages

_PIECE = 1 << 20
# The most to read at once: a rank that never stops writing must not keep the kernel from its other work. A
# pipe does not hold more than this: what a rank has written before its reply is shown with the reply.
_MOST_OUTPUT = 1 << 20
_MOST_REPLY = 64 << 20


class Peer:
    """All calls are non-blocking."""

    def __init__(self, rank, pid, connection, output, reader):
        self.rank = rank
        self.pid = pid
        self.request = None  # the number of the request that it is working on
        self.reply = None    # (header, payload) of its last reply
        self.interrupted = False  # it has raised KeyboardInterrupt in this request
        self.facts = {}      # what it said when it started: backend, device
        self.ended = False   # its process has ended, or it has closed the connection
        self.exit_status = None  # what it said when it called os._exit
        self._socket = connection
        self._output = output
        self._reader = reader
        self._outgoing = []
        try:
            # Shows the end of the process even if its children have inherited the socket.
            self._process = os.pidfd_open(pid)
        except OSError:
            self._process = None  # an old Linux kernel: the end of the socket has to do
        connection.setblocking(False)
        os.set_blocking(output, False)

    def start(self, number, header, payload=b""):
        self.request, self.reply, self.interrupted = number, None, False
        self._outgoing += [memoryview(part) for part in messages.encode({**header, "id": number}, payload)]

    def interests(self):
        """(descriptor, poll events) of everything that step() handles."""
        if self._socket is None or self.ended:
            return []
        result = [(self._socket.fileno(), select.POLLIN | (select.POLLOUT if self._outgoing else 0))]
        if self._output is not None:
            result.append((self._output, select.POLLIN))
        if self._process is not None:
            result.append((self._process, select.POLLIN))
        return result

    def step(self, view):
        """Sends, receives and shows what is possible now."""
        if self._socket is None:
            return
        # Before its output is read: a process that ends in between has then written all of it.
        ended = self._process_ended()
        self._send()
        self._receive()
        self.show_output(view)
        self.ended = self.ended or ended

    def show_output(self, view):
        shown = 0
        while self._output is not None and shown < _MOST_OUTPUT:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            shown += len(data)
            if data:
                view.feed(self.rank, data)
            else:
                os.close(self._output)
                self._output = None

    def signal(self, number):
        try:
            if self._process is not None:
                signal.pidfd_send_signal(self._process, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def wait_for_end(self, seconds):
        if self._process is not None:
            _readable(self._process, seconds)

    def close(self):
        self.ended = True
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        for fd in (self._output, self._process):
            if fd is not None:
                os.close(fd)
        self._output = self._process = None

    def _process_ended(self):
        return self._process is not None and _readable(self._process, 0)

    def _send(self):
        while self._outgoing:
            try:
                sent = self._socket.send(self._outgoing[0][:_PIECE], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._outgoing = []
                self.ended = True
                return
            self._outgoing[0] = self._outgoing[0][sent:]
            if not self._outgoing[0]:
                del self._outgoing[0]

    def _receive(self):
        received = 0
        while received < _MOST_REPLY:
            try:
                data = self._socket.recv(_PIECE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
                break
            received += len(data)
            self._reader.feed(data)
        try:
            while (frame := self._reader.next()) is not None:
                self._take(frame)
        except messages.ProtocolError:
            self.ended = True  # something else has written to the socket

    def _take(self, frame):
        header = frame[0]
        if header.get("kind") == "exits":
            self.exit_status = header.get("status")
        elif header.get("id") != self.request:
            pass  # the late reply to a request that the user has interrupted and given up
        elif header.get("kind") == "interrupted":
            self.interrupted = True
        else:
            self.request, self.reply = None, frame


def _readable(fd, seconds):
    poll = select.poll()  # select() does not accept descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
