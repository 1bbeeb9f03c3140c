"""The built-in sampler, the weights it holds, and the frozen reference."""
