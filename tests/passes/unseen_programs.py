"""Steps that no pass was written for."""

import steptrace

critic = steptrace.resource("critic", doc="parameters of the value model")
critic_grads = steptrace.resource("critic.grads.sum", doc="gradients of the value model")
critic_losses = steptrace.resource("critic_losses", doc="losses of the value model")
lengths_seen = steptrace.resource("lengths_seen", doc="numbers that nobody reads")
ledger = steptrace.resource("ledger", kind="channel", doc="what was spent")


@steptrace.op(takes=("groups",), gives="groups<values>", reads=["critic"], writes=[])
def values(groups):
    return groups


@steptrace.op(takes=("micro_batch",), reads=["critic"], writes=["critic.grads.sum", "critic_losses"])
def train_critic(mb):
    return None


@steptrace.op(reads=["critic", "critic.grads.sum"], writes=["critic", "critic.grads.sum"])
def update_critic():
    return None


@steptrace.op(takes=("groups",), gives="groups<penalised>", reads=[], writes=[])
def length_penalty(groups):
    return groups


@steptrace.op(takes=("metrics",), gives="scalar", reads=[], writes=[])
def adapted(metrics):
    return 1.0


@steptrace.op(takes=("groups", "scalar"), gives="groups<shaped>", reads=[], writes=[])
def shaped(groups, coefficient):
    return groups


@steptrace.op(takes=("micro_batch", "scalar"), gives="micro_batch<scaled>", reads=[], writes=[])
def scaled(mb, coefficient):
    return mb


@steptrace.op(takes=("groups",))
def audit(groups):
    return None


@steptrace.op(takes=("groups",), reads=["host[k]"], writes=["ledger"])
def spend(groups):
    return None


@steptrace.op(takes=("groups",), reads=["host[k]"], writes=["lengths_seen"])
def note_lengths(groups):
    return None


def _end(step, metrics):
    with step.every(10):
        step.save_checkpoint()
    step.sync_weights()
    step.commit()
    step.log(metrics)


@steptrace.program(staleness=1)
def ppo_with_critic(step):
    step.dispatch(prompts=4, samples=2)
    groups = values(step.reward(step.take()))
    batch = step.pack(step.advantages(groups))
    for mb in step.micro_batches(batch):
        mb = step.ref_logps(mb)
        step.fwd_bwd(mb)
        train_critic(mb)
    step.update()
    update_critic()
    metrics = step.get_metrics()
    _end(step, metrics)
    step.on_step_end(reads=["metrics"])


@steptrace.program(staleness=1)
def own_ops(step):
    step.dispatch(prompts=4, samples=2)
    groups = step.take()
    spend(groups)
    scored = step.advantages(length_penalty(step.reward(groups)))
    for mb in step.micro_batches(step.pack(scored)):
        step.fwd_bwd(step.ref_logps(mb))
    step.update()
    metrics = step.get_metrics()
    _end(step, metrics)
    step.on_step_end(reads=["metrics"])


@steptrace.program(staleness=1)
def undeclared_callback(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    _end(step, metrics)
    step.on_step_end()


@steptrace.program(staleness=1)
def undeclared_op(step):
    step.dispatch(prompts=4, samples=2)
    groups = step.take()
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(mb)
    step.update()
    audit(groups)
    metrics = step.get_metrics()
    _end(step, metrics)


@steptrace.program(staleness=1)
def adaptive_kl(step):
    kl = step.carry("kl_coef", init=0.1)
    step.dispatch(prompts=4, samples=2)
    batch = step.pack(step.advantages(step.reward(step.take())))
    for mb in step.micro_batches(batch):
        mb = scaled(step.ref_logps(mb), kl.value)
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    kl.set(adapted(metrics))
    _end(step, metrics)
    step.on_step_end(reads=["metrics"])


@steptrace.program(staleness=1)
def old_policy(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(step.old_logps(step.ref_logps(mb)))
    step.update()
    metrics = step.get_metrics()
    _end(step, metrics)
    step.on_step_end(reads=["metrics"])


@steptrace.program(staleness=1)
def leftover_op(step):
    step.dispatch(prompts=4, samples=2)
    groups = step.take()
    note_lengths(groups)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    _end(step, metrics)


seen_prompts = steptrace.resource("seen_prompts", doc="prompts that were trained on")


@steptrace.op(takes=("groups",), gives="groups", reads=["seen_prompts"], writes=["seen_prompts"])
def unseen_only(groups):
    return groups


@steptrace.op(takes=("micro_batch",), gives="micro_batch<weighted>", reads=["seen_prompts"], writes=["seen_prompts"])
def weighted(mb):
    return mb


@steptrace.program(staleness=1)
def remembering(step):
    step.dispatch(prompts=4, samples=2)
    groups = unseen_only(step.take())
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(step.ref_logps(mb))
    step.update()
    _end(step, step.get_metrics())


@steptrace.program(staleness=1)
def remembering_micro_batches(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(weighted(step.ref_logps(mb)))
    step.update()
    _end(step, step.get_metrics())


@steptrace.program(staleness=1)
def forgetful(step):
    carried = step.carry("coefficient", init=0.5)
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    carried.set(adapted(metrics))
    _end(step, metrics)


@steptrace.op(takes=("groups",), reads=["host[k]"], writes=["seen_prompts"], lane="archive")
def archive(groups):
    return None


@steptrace.program(staleness=1)
def archiving(step):
    step.dispatch(prompts=4, samples=2)
    groups = step.take()
    archive(groups)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(mb)
    step.update()
    _end(step, step.get_metrics())


@steptrace.op(reads=[], writes=["ledger"])
def report():
    return None


@steptrace.program(staleness=1)
def reporting(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    report()
    _end(step, metrics)


@steptrace.program(staleness=1)
def reporting_late(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    report()
    step.commit()
    step.log(metrics)


@steptrace.program(staleness=1)
def critic_behind_each_call(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        mb = step.old_logps(step.ref_logps(mb))
        step.fwd_bwd(mb)
        train_critic(mb)
    step.update()
    update_critic()
    _end(step, step.get_metrics())


notes_mean = steptrace.resource("notes.mean", "cell", doc="mean reward of each step")


@steptrace.op(
    takes=("groups",), gives="groups<penalised>", reads=["host[k]", "notes.mean[k-1]"], writes=["notes.mean[k]"]
)
def penalty(groups):
    return groups


@steptrace.program(staleness=1)
def penalised(step):
    step.dispatch(prompts=4, samples=2)
    groups = penalty(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(step.advantages(groups))):
        step.fwd_bwd(mb)
    step.update()
    _end(step, step.get_metrics())
