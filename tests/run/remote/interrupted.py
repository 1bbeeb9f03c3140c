"""A run on processes that goes on until it is interrupted; says which processes are its own."""

from __future__ import annotations

import signal

from remote_parts import bind, children

import steptrace


class Tells:
    def __init__(self, before):
        self.before = before

    def on_step_begin(self, step):
        if step == 2:
            print(*children() - self.before, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    tells = Tells(children())
    steptrace.run("grpo{prompts=4, samples=3, staleness=1}", bind(callbacks=tells), epochs=100_000, target="process")
