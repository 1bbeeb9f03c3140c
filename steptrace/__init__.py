"""steptrace: a compiler for the RL train step."""
