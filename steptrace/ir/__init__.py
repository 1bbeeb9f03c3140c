"""The schedule IR: immutable data, its text, and its structural verifier. Loads without jax."""
