"""Parts in processes of their own: a call goes over a unix socket, large arrays through shared memory."""

from __future__ import annotations

from steptrace.workers.client import Worker
from steptrace.workers.pending import Pending
from steptrace.workers.remote import Remote, remote

__all__ = ["Pending", "Remote", "Worker", "remote"]
