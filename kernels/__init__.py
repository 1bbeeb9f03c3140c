"""Kernels, one folder each: the kernel and its reference. Imports nothing of steptrace."""
