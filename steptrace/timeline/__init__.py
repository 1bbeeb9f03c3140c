"""What a run did, lane by lane and device by device: planned or measured, as a file, a trace, a page, or text.

`recording_of(run, plan)` takes a run in virtual time; `steptrace.run.record.Recorder` makes the same of a real one.
Loads without jax and numpy.
"""

from steptrace.timeline.events_file import read_events, write_events
from steptrace.timeline.idle import Gap, gaps_of
from steptrace.timeline.page import page_of
from steptrace.timeline.recording import Arrow, Line, Recording, arrows_of, lines_of, problems, recording_of
from steptrace.timeline.text import text_of
from steptrace.timeline.trace_events import trace_of

__all__ = [
    "Arrow",
    "Gap",
    "Line",
    "Recording",
    "arrows_of",
    "gaps_of",
    "lines_of",
    "page_of",
    "problems",
    "read_events",
    "recording_of",
    "text_of",
    "trace_of",
    "write_events",
]
