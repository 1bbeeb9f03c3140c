"""Lowering: from a program to a flat plan of calls on bound parts."""
