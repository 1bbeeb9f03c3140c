"""Where a worker comes in: a unix socket in a private folder, and a thread that lets in who knows the secret."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import tempfile
import threading

from steptrace.workers.frames import challenge

FOLDER = "steptrace-"
"""How the names of those folders begin."""

_LONGEST = 100
"""Bytes of a path that every system takes as the name of a unix socket."""


class Door:
    """A listening socket.

    Args:
      secret: what a peer must prove to know.
      patience: seconds that a peer is given for the proof.

    Attributes:
      folder: the private folder (mode 0700) with the socket.
      path: the socket.
      refused: how many peers were sent away.
    """

    def __init__(self, secret: bytes, patience: float = 5.0) -> None:
        self.folder = tempfile.mkdtemp(prefix=FOLDER)
        if len(os.fsencode(self.folder)) > _LONGEST - len("/socket"):
            os.rmdir(self.folder)
            self.folder = tempfile.mkdtemp(prefix=FOLDER, dir="/tmp")
        self.path = os.path.join(self.folder, "socket")
        self.refused = 0
        self._secret, self._patience = secret, patience
        self._closing = False
        self._let_in: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self.path)
        self._listening.listen(8)
        self._thread = threading.Thread(target=self._keep, name="steptrace-door", daemon=True)
        self._thread.start()

    def next(self, timeout: float) -> socket.socket | None:
        """The next peer that has proved itself, None when none came within ``timeout`` seconds."""
        try:
            return self._let_in.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the thread, remove the socket and its folder."""
        if self._closing:
            return
        self._closing = True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
                knock.connect(self.path)
        except OSError:
            pass
        self._thread.join()
        self._listening.close()
        while (peer := self.next(0)) is not None:
            peer.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _keep(self) -> None:
        while True:
            peer, _ = self._listening.accept()
            if self._closing:
                peer.close()
                return
            if self._proves(peer):
                self._let_in.put(peer)
            else:
                self.refused += 1
                peer.close()

    def _proves(self, peer: socket.socket) -> bool:
        peer.settimeout(self._patience)
        try:
            return challenge(peer, self._secret)
        except OSError:
            return False
