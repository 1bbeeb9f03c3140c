"""Who may come in: only a peer that knows the run's secret, and nothing that another sends is unpickled."""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import socket
import stat

import pytest
from worker_parts import Box

from steptrace.workers import Worker, packing, remote
from steptrace.workers.door import Door
from steptrace.workers.frames import Channel, Frame, Kind, respond

SECRET = bytes(range(32))


@pytest.fixture
def door():
    door = Door(SECRET, patience=0.2)
    yield door
    door.close()


@pytest.fixture
def unpickled(monkeypatch):
    """What reaches the unpickler of this process."""
    seen = []
    original = packing._Unpacker.load

    def load(self):
        seen.append(self)
        return original(self)

    monkeypatch.setattr(packing._Unpacker, "load", load)
    return seen


def knock(door: Door) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(30)
    peer.connect(door.path)
    return peer


def ended(peer: socket.socket) -> bool:
    """Wait for the other end to close, after the nonce that every peer gets; anything else runs into the timeout."""
    with contextlib.suppress(ConnectionResetError):
        while peer.recv(4096):
            pass
    peer.close()
    return True


def evil() -> bytes:
    """A reply whose pickle would be executed."""
    return pickle.dumps({"answer": 42})


def send_reply(peer: socket.socket) -> None:
    Channel(peer).send(Frame(Kind.REPLY, 1, body=evil()))


def test_a_peer_with_the_secret_comes_in(door):
    peer = knock(door)
    assert respond(peer, SECRET)
    inside = door.next(30)
    peer.sendall(b"hello")
    assert inside.recv(5) == b"hello"
    inside.close()
    peer.close()


def test_a_peer_with_another_secret_is_refused(door):
    peer = knock(door)
    with pytest.raises((ConnectionError, OSError)):
        respond(peer, bytes(32))
    assert ended(peer)
    assert door.next(0) is None
    assert door.refused == 1


def test_a_peer_that_repeats_the_drivers_own_proof_is_refused(door):
    """The proofs of the two sides are not the same function."""
    peer = knock(door)
    nonce = peer.recv(32)
    peer.sendall(nonce + hmac.digest(bytes(32), nonce, "sha256"))
    assert ended(peer)
    assert door.next(0) is None


@pytest.mark.parametrize("start", [b"", b"x" * 63, evil(), b"x" * 100_000])
def test_a_peer_without_the_secret_is_refused_and_not_waited_for(door, start: bytes):
    peer = knock(door)
    with contextlib.suppress(BrokenPipeError):
        peer.sendall(start)
    assert ended(peer)
    assert door.next(0) is None
    honest = knock(door)
    assert respond(honest, SECRET)
    door.next(30).close()


def test_a_worker_turns_away_from_a_driver_without_the_secret():
    driver, worker = socket.socketpair()
    driver.sendall(bytes(32))
    driver.settimeout(30)
    worker.settimeout(30)
    driver.sendall(bytes(32))  # no proof
    assert respond(worker, SECRET) is False


def test_what_a_stranger_sends_is_never_unpickled(unpickled):
    worker = Worker.start(remote(Box))
    before = len(unpickled)
    peer = knock(worker._door)
    send_reply(peer)
    assert ended(peer)
    assert worker._door.refused == 1
    assert len(unpickled) == before
    assert worker.call("add", 1) == 1
    worker.close()


def test_control_what_a_peer_that_was_let_in_sends_is_unpickled(unpickled, monkeypatch):
    worker = Worker.start(remote(Box))
    pending = worker.send("nap", 60)
    before = len(unpickled)
    ours, theirs = socket.socketpair()
    send_reply(theirs)
    let_in = [ours]
    monkeypatch.setattr(worker._door, "next", lambda timeout: let_in.pop() if let_in else None)
    worker._link._channel.drop()  # whoever the door lets in is taken for the worker
    assert pending.result(timeout=60) == {"answer": 42}
    assert len(unpickled) == before + 1
    worker.kill()
    theirs.close()


def test_the_socket_lies_in_a_folder_of_the_user_alone(door):
    assert stat.S_IMODE(os.stat(door.folder).st_mode) == 0o700
    door.close()
    assert not os.path.exists(door.folder)


def test_the_socket_has_a_name_that_fits_where_temporary_files_lie_deep(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    door = Door(SECRET)
    peer = knock(door)
    assert respond(peer, SECRET)
    door.close()
    assert list(deep.iterdir()) == []


def test_the_secret_is_not_among_the_words_of_the_command_and_not_in_the_environment():
    worker = Worker.start(remote(Box))
    secret = worker._door._secret.hex()
    for file in ("cmdline", "environ"):
        with open(f"/proc/{worker.pid}/{file}", "rb") as text:
            assert secret.encode() not in text.read()
    worker.close()
