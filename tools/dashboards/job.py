"""The dashboard of one job: what it learns, where the time of its steps goes, what failures cost it."""

from .panels import bars, dashboard, series, stat, states, variable

JOB = 'trainer_namespace="$namespace",trainer_job="$job"'
RATE = "$__rate_interval"


def of(name, labels=""):
    return f"{name}{{{JOB}{',' if labels else ''}{labels}}}"


def rate(name, labels="", over=RATE):
    return f"rate({of(name, labels)}[{over}])"


STEPS = f'sum({rate("trainyard_rank_steps_total")})'
STAGES = "trainyard_rank_stage_seconds_total"


def share_of_stage(stage):
    return f'sum by (rank) ({rate(STAGES, f"stage=%{stage}%".replace("%", chr(34)))}) / sum by (rank) ({rate(STAGES)})'


def quantile(q):
    return (f'histogram_quantile({q}, sum by (le) ({rate("trainyard_step_duration_seconds_bucket")}))', f"p{round(100 * q)}")


def summary():
    left = f'max({of("trainyard_step_target")}) - max({of("trainyard_step")})'
    return ("Now", [
        stat("Phase", (f'max by (phase) ({of("trainyard_job_phase")}) == 1', "{{phase}}"), names=True, colours={
            "Running": "green", "Complete": "green", "Failed": "red", "Stalled": "red", "Restarting": "orange"}),
        stat("Step", f'max({of("trainyard_step")})', "locale"),
        stat("Done", f'max({of("trainyard_step")}) / (max({of("trainyard_step_target")}) > 0)', "percentunit", decimals=1),
        stat("Time left", f'({left}) / (max({rate("trainyard_rank_steps_total", over="5m")}) > 0)', "dtdurations",
             what="At the speed of the last five minutes"),
        stat("Tokens per second", f'max({of("trainyard_tokens_per_second")})', "locale", decimals=0),
        stat("Goodput", f'max({of("trainyard_goodput_ratio")})', "percentunit", decimals=1,
             what="The share of the job's time that advanced its model"),
        stat("Restarts", f'sum(max by (class) ({of("trainyard_restarts_total")}))', bad=1),
        stat("Steps lost", f'max({of("trainyard_lost_steps_total")})', "locale", bad=1, what="That failures have undone"),
    ])


def learning():
    return ("Learning", [
        series("Loss", [(f'max({of("trainyard_loss_nats")})', "training"), (f'max({of("trainyard_validation_loss_nats")})', "held out")], "none",
               what="Nats per token", least=None),
        series("Speed", (f'max({of("trainyard_tokens_per_second")})', "all ranks"), what="Tokens per second of all ranks together, smoothed"),
        series("Learning rate", (f'max({of("trainyard_learning_rate")})', "learning rate"), "sci"),
        series("Gradient norm", (f'max({of("trainyard_gradient_norm")})', "before clipping"), "none"),
    ])


def time_of_steps():
    compute = f'sum by (rank) ({rate(STAGES, "stage=~" + chr(34) + "forward|backward" + chr(34))})'
    return ("Where the time of a step goes", [
        series("Time of a step", [quantile(0.5), quantile(0.9), quantile(0.99)], "s", what="Evaluation and checkpoints left out"),
        series("A step by stage", (f'sum by (stage) ({rate(STAGES)}) / on () group_left () {STEPS}', "{{stage}}"), "s", stacked=True,
               what="Mean over all ranks; data_wait, collective_wait and pipeline_wait are waits, checkpoint is the stall"),
        series("Waiting for data", (share_of_stage("data_wait"), "rank {{rank}}"), "percentunit", width=6, what="Share of each rank's time"),
        series("Waiting for other ranks", (share_of_stage("collective_wait"), "rank {{rank}}"), "percentunit", width=6,
               what="Share of each rank's time. The slow rank is the one that waits least"),
        series("Waiting for other stages", (share_of_stage("pipeline_wait"), "rank {{rank}}"), "percentunit", width=6,
               what="Share of each rank's time in which it waits for messages of the stages before and after: the bubble of a pipeline but for the wait at a step's end"),
        series("A rank's own work in a step", (f'{compute} / (sum by (rank) ({rate("trainyard_rank_steps_total")}) > 0)', "rank {{rank}}"), "s",
               width=6, what="Forward and backward passes"),
    ])


def communication():
    """Most operations are never used by a job: they are left out."""
    per_step = f'(sum by (operation) ({rate("trainyard_rank_collective_seconds_total")}) > 0) / on () group_left () {STEPS}'
    sent, received, busy = (f'sum by (operation) ({rate(name)})' for name in (
        "trainyard_rank_collective_sent_bytes_total", "trainyard_rank_collective_received_bytes_total", "trainyard_rank_collective_seconds_total"))
    return ("Collectives", [
        series("Time in collectives, by step", (per_step, "{{operation}}"), "s",
               what="From begin to end, the wait for slower ranks included; much of it may run beside compute"),
        series("Bandwidth", (f"{sent} / ({busy} > 0)", "{{operation}}"), "Bps", what="Bytes that a rank sends while in the collective"),
        series("Sent", (f"{sent} > 0", "{{operation}}"), "Bps", stacked=True, what="By all ranks"),
        series("Received", (f"{received} > 0", "{{operation}}"), "Bps", stacked=True, what="By all ranks"),
    ])


def checkpoints():
    newest = f'max({of("trainyard_checkpoint_timestamp_seconds")} > 0)'
    return ("Checkpoints", [
        series("Age of the newest", (f"time() - {newest}", "age"), "s", width=8, what="What a failure now would cost"),
        series("Duration of the newest", (f'max({of("trainyard_checkpoint_duration_seconds")})', "snapshot to commit"), "s", width=8),
        series("Size of the newest", (f'sum({of("trainyard_checkpoint_size_bytes")})', "all ranks"), "bytes", width=8),
        series("Training paused for checkpoints", (f'sum by (rank) ({rate("trainyard_rank_checkpoint_stall_seconds_total")})', "rank {{rank}}"),
               "percentunit", what="Share of each rank's time: the copy, and the wait for the previous checkpoint"),
        series("Checkpoints of these processes", (f'max by (result) ({of("trainyard_checkpoints_total")})', "{{result}}"), "none", steps=True),
    ])


def memory():
    return ("Memory", [
        series("By purpose", (f'avg by (purpose) ({of("trainyard_rank_memory_bytes")})', "{{purpose}}"), "bytes", stacked=True,
               what="Planned and held by the engine, mean over the ranks"),
        series("Resident", (f'sum by (rank) ({of("trainyard_rank_resident_memory_bytes")})', "rank {{rank}}"), "bytes",
               what="What each rank's process occupies"),
    ])


def gpus():
    """Empty for a job without GPUs."""
    name = "{{instance}} {{gpu}}"
    def one(series, of_what="max"):
        return f"{of_what} by (instance, gpu) ({of(series)})"
    return ("GPUs", [
        series("Busy", (one("trainyard_gpu_utilization_ratio"), name), "percentunit", width=6, what="Share of the time in which any kernel ran"),
        series("Model FLOPs utilization", (f'max({of("trainyard_model_flops_utilization_ratio")})', "all ranks"), "percentunit", width=6,
               what="FLOPs that the model needs, divided by the peak of all GPUs"),
        series("Memory in use", (one("trainyard_gpu_memory_used_bytes"), name), "bytes", width=6),
        series("Power", [(one("trainyard_gpu_power_watts"), name), (f'max({of("trainyard_gpu_power_limit_watts")})', "limit")], "watt", width=6),
        series("Temperature", (one("trainyard_gpu_temperature_celsius"), name), "celsius", width=8),
        series("Clock", (one("trainyard_gpu_clock_hertz"), name), "hertz", width=8, what="Of the multiprocessors; it falls under load, by heat and by limits of power"),
        series("Slowed", (f'max by (instance, gpu, reason) ({of("trainyard_gpu_slowed")}) > 0', name + " by {{reason}}"), "none", width=8, steps=True),
        series("Errors by Xid", (f'sum by (instance, gpu, xid) ({of("trainyard_gpu_xid_errors_total")})', name + ": {{xid}}"), "none", steps=True,
               what="As the driver reports them"),
        series("Errors of memory", (f'max by (instance, gpu, kind) ({of("trainyard_gpu_ecc_errors_total")})', name + " {{kind}}"), "none", steps=True,
               what="Since the driver was loaded"),
    ])


def failures():
    return ("Failures and what they cost", [
        states("Phase of the job", (f'max by (phase) ({of("trainyard_job_phase")})', "{{phase}}")),
        series("Ranks by phase", (f'sum by (phase) ({of("trainyard_rank_phase")})', "{{phase}}"), "none", stacked=True, steps=True),
        series("Restarts by class", (f'max by (class) ({of("trainyard_restarts_total")})', "{{class}}"), "none", steps=True, width=8),
        series("Steps lost over time", (f'max({of("trainyard_lost_steps_total")})', "steps"), "none", steps=True, width=8),
        series("Nodes", (f'max by (state) ({of("trainyard_job_nodes")})', "{{state}}"), "none", steps=True, width=8),
        series("Where the time went", (f'max by (category) ({rate("trainyard_goodput_seconds_total", over="10m")})', "{{category}}"), "percentunit",
               stacked=True, what="Over ten minutes; productive time advanced the model"),
        bars("Where all the time went", (f'max by (category) ({of("trainyard_goodput_seconds_total")})', "{{category}}"), "dtdurations",
             what="Since the job's start"),
        series("Slowest rank", (f'max({of("trainyard_slowest_rank")})', "rank"), "none", width=8, least=-1, points=True, decimals=0,
               what="That holds the others up; -1 while none does"),
        series("Generation", (f'max({of("trainyard_job_generation")})', "generation"), "none", width=8, steps=True, what="Rises with each restart and resize"),
        series("Agents", [(f'sum({of("trainyard_agent_stream_connected")})', "control streams"),
                          (f'sum({of("trainyard_agent_running_ranks")})', "running ranks"),
                          (f'max({of("trainyard_job_expected_ranks")})', "ranks wanted")], "none", width=8, steps=True),
    ])


def make():
    return dashboard(
        "trainyard-job", "Trainyard / Job", "One TrainingJob: what it learns, where its time goes, what failures cost it",
        [variable("namespace", "label_values(trainyard_job_phase, trainer_namespace)", "Namespace"),
         variable("job", 'label_values(trainyard_job_phase{trainer_namespace="$namespace"}, trainer_job)', "Job")],
        [summary(), learning(), time_of_steps(), communication(), checkpoints(), memory(), gpus(), failures()], since="now-3h", refresh="30s",
        annotations=[("Restarts and resizes", "orange", f'max(changes({of("trainyard_job_generation")}[{RATE}])) > 0', "new generation")])
