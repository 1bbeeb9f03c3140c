"""Groups for the tests of this folder, made from plain lists."""

import numpy as np

from steptrace.lang.records import Completion, Group, GroupId, Prompt


def group(prompt_id, prompt, samples, *, draw=0, step=0, rewards=None, advantages=None):
    """A group; ``samples`` are lists of token ids, and the log-prob of token t is -t/64."""
    completions = tuple(
        Completion(np.array(s, np.int32), -np.array(s, np.float32) / 64, " ".join(map(str, s)), True) for s in samples
    )
    return Group(
        id=GroupId(prompt_id, draw),
        step=step,
        prompt=Prompt(prompt_id, f"text of {prompt_id}"),
        prompt_tokens=np.array(prompt, np.int32),
        completions=completions,
        version=0,
        rewards=None if rewards is None else np.array(rewards, np.float32),
        advantages=None if advantages is None else np.array(advantages, np.float32),
    )
