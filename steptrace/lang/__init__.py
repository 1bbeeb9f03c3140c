"""The DSL: the step in plain Python, traced once; records and protocols of the parts."""
