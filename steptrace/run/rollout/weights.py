"""Versions of the weights a rollout holds: one content per version, owned, checked against the model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steptrace.diag.base import Note
from steptrace.diag.rollout import NoWeightsError, VersionHeldError, VersionNotHeldError, WeightsMismatchError


def owned_copy(tree: Any) -> Any:
    """A copy of a pytree of arrays on the default device that nobody else can donate or overwrite.

    Host arrays are copied on the host before JAX sees them: JAX may alias an aligned host buffer, or copy it
    only after this call returned. The copy of device arrays is only issued; donating the originals
    afterwards is safe, because JAX orders the donation behind the copy.
    """
    leaves, structure = jax.tree.flatten(tree)
    on_device = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
    copied = _copy_all(on_device)
    own = [copied[i] if i in copied else jax.device_put(np.array(leaf)) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, own)


@jax.jit
def _copy_all(arrays: dict[int, jax.Array]) -> dict[int, jax.Array]:
    return {index: jnp.copy(array) for index, array in arrays.items()}


class HeldWeights:
    """The versions of one model's weights that can be read now.

    Args:
      template: the model's parameters; only their structure, shapes and dtypes are kept.
    """

    def __init__(self, template: Any) -> None:
        self._expected = _signature(template)
        self._held: dict[int, Any] = {}
        self._ever = False

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions held, in ascending order."""
        return tuple(sorted(self._held))

    def apply(self, weights: Any, version: int) -> None:
        """Hold a copy of ``weights`` under ``version``.

        Raises:
          VersionHeldError: ST473, the version is held already.
          WeightsMismatchError: ST474, the weights are not of this model.
        """
        if version in self._held:
            raise VersionHeldError(
                f"version {version} of the weights is already held",
                notes=(Note(f"held: {self._listed()}"),),
                help="one content per version: apply new weights under their own version",
            )
        self._check(weights)
        self._held[version] = owned_copy(weights)
        self._ever = True

    def drop(self, version: int) -> None:
        """Forget ``version``. A generation that already reads it keeps its own hold on the arrays.

        Raises:
          NoWeightsError, VersionNotHeldError: as :meth:`read`.
        """
        self.read(version)
        del self._held[version]

    def read(self, version: int) -> Any:
        """The weights of exactly ``version``.

        Raises:
          NoWeightsError: ST471, no weights were ever applied.
          VersionNotHeldError: ST472, others are held, this one is not.
        """
        if not self._ever:
            raise NoWeightsError(
                f"version {version} was asked for, but no weights were ever applied",
                help="apply weights before the first generation",
            )
        if version not in self._held:
            raise VersionNotHeldError(
                f"version {version} of the weights is not held",
                notes=(Note(f"held: {self._listed()}"),),
                help="apply a version before it is read, and drop it after its last reader",
            )
        return self._held[version]

    def _listed(self) -> str:
        return ", ".join(map(str, self.versions)) or "none"

    def _check(self, weights: Any) -> None:
        """Refuse weights of another model, and weights whose buffers are gone."""
        found = _signature(weights)
        wrong = [
            f"{name}: expected {self._expected.get(name, 'nothing')}, found {found.get(name, 'nothing')}"
            for name in dict.fromkeys([*self._expected, *found])
            if self._expected.get(name) != found.get(name)
        ]
        if wrong:
            raise WeightsMismatchError(
                f"the weights do not fit the rollout's model: {len(wrong)} of {len(self._expected)} arrays differ",
                notes=tuple(Note(line) for line in wrong[:5]),
                help="build trainer and rollout from the same model configuration",
            )


def _signature(tree: Any) -> dict[str, str]:
    """Dtype and shape of each leaf by its path, as text."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): _described(leaf) for path, leaf in paths}


def _described(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return f"a {type(leaf).__name__}"
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return "a deleted buffer (donated by a later update)"
    return f"{leaf.dtype}{list(leaf.shape)}"
