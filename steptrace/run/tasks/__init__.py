"""Tasks with verifiable answers, and tokenizers for them."""

from steptrace.run.tasks.gym import PRESETS, Task, is_held_out, load_task, task_names
from steptrace.run.tasks.tokenizer import ByteTokenizer, TaskTokenizer

__all__ = ["PRESETS", "ByteTokenizer", "Task", "TaskTokenizer", "is_held_out", "load_task", "task_names"]
