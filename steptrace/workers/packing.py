"""Values on their way between processes: pickled, with the memory of their arrays beside the pickle.

JAX arrays travel as numpy arrays, typed PRNG keys as their data and the name of their generator.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptrace.diag.loc import Loc
from steptrace.diag.workers import UnpicklableError
from steptrace.workers import script


@dataclass(frozen=True, slots=True)
class Packed:
    """A value ready to be sent.

    Attributes:
      body: the pickle.
      buffers: the memory of its arrays in the order the pickle names it, flat and of bytes.
    """

    body: bytes
    buffers: tuple[memoryview, ...] = ()


class _Packer(pickle.Pickler):
    """Pickles by protocol 5; arrays of JAX become numpy's."""

    def reducer_override(self, value: Any) -> Any:
        """How an array is taken apart; everything else as usual."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray:
            return _reduced(value)
        jax = sys.modules.get("jax")
        if jax is None or not isinstance(value, jax.Array):
            return NotImplemented
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return _key, (jax.numpy.asarray(jax.random.key_data(value)), str(jax.random.key_impl(value)))
        return _reduced(numpy.asarray(value)) if numpy else NotImplemented


def _reduced(array: Any) -> Any:
    """How an array is made again: from its bytes, which travel beside the pickle."""
    if array.dtype.hasobject or array.dtype.names or not array.size:
        return array.__reduce_ex__(5)
    if not array.flags.forc:
        array = array.copy()
    order = "C" if array.flags.c_contiguous else "F"
    flat = array.reshape(-1, order=order).view("uint8")
    return _array, (pickle.PickleBuffer(flat), array.dtype, array.shape, order)


def _array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    """The array on the memory ``buffer``."""
    import numpy as np

    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


def _key(data: Any, generator: str) -> Any:
    """The typed PRNG key with this data."""
    import jax

    return jax.random.wrap_key_data(data, impl=generator)


class _Unpacker(pickle.Unpickler):
    """Finds in the driver's script what was defined in it."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function ``name`` of ``module``."""
        return super().find_class(script.module_of(module), name)


def pack(value: object) -> Packed:
    """A value as bytes and buffers. Raises what pickling it raises."""
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Packer(stream, 5, buffer_callback=buffers.append).dump(value)
    return Packed(stream.getvalue(), tuple(buffer.raw() for buffer in buffers) if buffers else ())


def unpack(body: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """The value that was packed; its arrays lie on ``buffers``. Only for bytes of a peer that has proved itself."""
    return _Unpacker(io.BytesIO(body), buffers=buffers).load()


def check_arguments(args: Sequence[object], kwargs: Mapping[str, object], loc: Loc | None = None) -> None:
    """Raise the coded error when the arguments of a call cannot be sent."""
    try:
        pack((args, kwargs))
    except Exception as error:
        raise unpicklable(args, kwargs, error, loc) from error


def unpicklable(
    args: Sequence[object], kwargs: Mapping[str, object], error: Exception, loc: Loc | None = None
) -> UnpicklableError:
    """The coded error that names the place of what cannot be sent."""
    named = [*((f"argument {index}", value) for index, value in enumerate(args)), *kwargs.items()]
    for name, value in named:
        if not _goes(value):
            path, culprit = _culprit(value, depth=20)
            where = f"argument `{name}{path}`" if name in kwargs else f"{name}{f', at `{path}`,' if path else ''}"
            break
    else:
        where, culprit = "a value", error
    return UnpicklableError(
        f"{where} cannot be sent to another process: it is of type `{type(culprit).__name__}` ({error})",
        loc=loc,
        help="send plain data and arrays, and build the rest in the worker",
    )


def result_path(value: object) -> str:
    """Where in a result that cannot be sent the trouble lies, with its type."""
    path, culprit = _culprit(value, depth=20)
    return f"`result{path}` of type `{type(culprit).__name__}`"


def _goes(value: object) -> bool:
    try:
        pack(value)
    except Exception:
        return False
    return True


def _culprit(value: object, depth: int) -> tuple[str, object]:
    """The innermost value that cannot be sent, and the way to it."""
    for step, child in _children(value) if depth else ():
        if not _goes(child):
            path, culprit = _culprit(child, depth - 1)
            return step + path, culprit
    return "", value


def _children(value: object) -> Iterator[tuple[str, object]]:
    """What a value holds, with how it is reached."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif not isinstance(value, type) and not callable(value):
        names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        held = {name: getattr(value, name) for name in names if hasattr(value, name)}
        yield from ((f".{name}", child) for name, child in {**held, **getattr(value, "__dict__", {})}.items())
