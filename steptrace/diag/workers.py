"""Codes ST610-ST619: parts that live in processes of their own."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class RemoteFactoryError(SteptraceError):
    """What makes the part cannot be named from another process.

        steptrace.remote(lambda: Trainer(seed=0))        # error[ST610]: another process cannot import a lambda

    A worker imports the function or class by its module and name, and calls it there. A lambda, a function inside a
    function, a bound method of an object that is not plain data, or something typed at a prompt has no such name.

    Way out: define the function at the top of a module or of the script, and give it its arguments through
    `steptrace.remote(make_trainer, seed=0)`.
    """

    code = "ST610"


class UnpicklableError(SteptraceError):
    """A value that should go to a worker, or come back from it, cannot be sent. Nothing was sent.

        steptrace.remote(make_trainer, schedule=lambda step: 1e-3)      # error[ST611]: argument `schedule` ...

    The message names the place inside the value: an attribute, a key, an index. Values travel by `pickle`; arrays of
    numpy and JAX and typed PRNG keys travel as they are. Functions travel by name, so a lambda does not.

    Way out: send plain data, and build in the factory, which runs in the worker, what cannot travel.
    """

    code = "ST611"


class WorkerStartError(SteptraceError):
    """The process of a worker ended, or did not answer, before its part was built.

    An error that the factory raises comes through as itself, with a note that names the worker; this one is for a
    process that ended without a word.

        steptrace.remote(make_trainer)                   # a module of make_trainer calls sys.exit() when imported

    Ways out: its output stands on standard error, or in the file that the message names; a process that was ended by
    `SIGKILL` often wanted more memory than there is.
    """

    code = "ST612"


class WorkerLostError(SteptraceError):
    """A worker died or fell silent while a call was under way, or before it could be sent.

    The message says which worker, which call, and how it ended: a signal (`SIGKILL` often means that the machine ran
    out of memory), an exit code, or no heartbeat for as long as was agreed (a process that is stopped, or a machine
    that hangs). Whether the call had its effect is not known.

        worker `trainer` (process 4711) was ended by signal 9 (SIGKILL): `update` (request 93) has no answer

    Ways out: resume the run from its last checkpoint; `heartbeat=` of a worker that is stopped on purpose.

    Attributes:
      worker: the worker's name.
      method: the method that was called.
      request: its number, counted from 1 for each worker.
    """

    code = "ST613"
    worker: str = ""
    method: str = ""
    request: int = 0


class WorkerCallError(SteptraceError):
    """A call failed in a worker with an error that cannot be rebuilt here.

    Errors keep their type on the way where that type can be imported on both sides and be made again from what it
    carries. The message gives the type's name, its text, and the worker; the traceback stands in the cause.

        class Diverged(Exception):
            def __init__(self, step, loss):              # cannot be made again from its one argument
                super().__init__(f"loss {loss} in step {step}")

    Way out: read the error it reports; let the class of the error take its arguments through `Exception.__init__`.
    """

    code = "ST614"


class WorkerTimeoutError(SteptraceError):
    """A call was not answered within the time that was given. The worker lives and may still be at it.

        worker.send("update").result(timeout=0.1)        # the first update compiles for seconds: error[ST615]

    Way out: a longer `timeout` or `deadline`, or `kill()` of the worker, which ends the call.
    """

    code = "ST615"


class BuffersLentError(SteptraceError):
    """Every buffer of the ring is lent out, and none came back in time.

        for batch in batches:
            worker.send("stage", batch, lend=True)       # the fifth of four: error[ST616]

    A lent buffer is read by the worker in place. It is never written again before it was released, since on CPU JAX
    computes on the very memory it is given.

    Ways out: `pending.buffers.release()` after the last reader of each; a longer ring, `slots=`; or send without
    `lend=True`, so that the worker copies.
    """

    code = "ST616"


class BufferHeldError(SteptraceError):
    """A lent buffer should be free again, and the part in the worker still holds an array on it.

    The buffer stays lent. It was released before its last reader was done, or the part keeps what it was given:

        def stage(self, batch):
            self.batch = batch                           # lent arrays, held until the next call of stage

    Ways out: release after the call that reads it last; let the part copy what it keeps; or send without
    `lend=True`.
    """

    code = "ST617"


class WorkerClosedError(SteptraceError):
    """A call on a worker that was closed or killed by this program.

        worker.close()
        worker.call("update")                            # error[ST618]

    Way out: close a worker after the last call; `pending.result()` of calls under way comes before.
    """

    code = "ST618"


class WorkerMainError(SteptraceError):
    """A worker that needs your script for its definitions would run the script again.

        worker = Worker.start(remote(make_trainer))       # at the top of the script that defines make_trainer

    A function or class that is defined in the script itself is found by loading the script in the worker, under the
    name `__mp_main__`. What starts a run or a worker must not run then.

    Ways out: put what the script does under `if __name__ == "__main__":`; or define the factory in a module.
    """

    code = "ST619"
