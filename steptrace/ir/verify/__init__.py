"""The structural verifier: what must hold in a program before anyone reasons about its order."""

from steptrace.ir.verify.driver import problems, verify

__all__ = ["problems", "verify"]
