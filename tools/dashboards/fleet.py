"""The dashboard of all jobs and of the operator that runs them."""

from .panels import bars, dashboard, series, stat, variable

RATE = "$__rate_interval"
LEADER = 'leader_election_master_status{name="trainyard-operator"}'
# Other programs count requests under this name, too: only those of processes that count a leader of ours.
OURS = f"and on (job, instance) {LEADER}"
JOB_LABELS = "trainer_namespace, trainer_job"
JOB_LEGEND = "{{trainer_namespace}}/{{trainer_job}}"
TO_JOB = [{"title": "Job ${__field.labels.trainer_job}", "url": "/d/trainyard-job?${datasource:queryparam}"
           "&var-namespace=${__field.labels.trainer_namespace}&var-job=${__field.labels.trainer_job}&${__url_time_range}"}]


def of(name, labels=""):
    return f'{name}{{trainer_namespace=~"$namespace"{"," if labels else ""}{labels}}}'


def by_job(expression):
    """While the leader changes two may tell of a job."""
    return f"max by ({JOB_LABELS}) ({expression})"


def ours(name, labels=""):
    """A series of controller-runtime's about our one controller."""
    return f'{name}{{controller="trainingjob"{"," if labels else ""}{labels}}}'


def quantile(q, name):
    return f"histogram_quantile({q}, sum by (le) (rate({ours(name + '_bucket')}[{RATE}])))", f"p{round(100 * q)}"


def jobs_in(phases):
    return f'sum(max by (trainer_namespace, phase) ({of("trainyard_jobs", "phase=~" + chr(34) + phases + chr(34))})) or vector(0)'


def nodes(state):
    return "sum(" + by_job(of("trainyard_job_nodes", f'state="{state}"')) + ")"


def summary():
    productive = 'sum(rate(' + of("trainyard_goodput_seconds_total", 'category="productive"') + '[1h]))'
    return ("Now", [
        stat("Running", jobs_in("Running")),
        stat("Waiting", jobs_in("Pending|Starting"), what="For nodes, for images, for ranks to meet"),
        stat("Restarting or resizing", jobs_in("Restarting|Resizing")),
        stat("Stalled", jobs_in("Stalled"), bad=1),
        stat("Failed", jobs_in("Failed"), bad=1, what="And not deleted yet"),
        stat("Goodput of the last hour", f'{productive} / (sum(rate({of("trainyard_wall_seconds_total")}[1h])) > 0)', "percentunit", decimals=1,
             what="The share of all jobs' time that advanced a model"),
        stat("Leader", f"sum({LEADER})", what="Operators that lead: one per release"),
        stat("Alerts", 'count(ALERTS{alertname=~"Trainyard.+",alertstate="firing"}) or vector(0)', bad=1, what="Firing alerts of the chart's rules"),
    ])


def jobs():
    return ("Jobs", [
        series("Jobs by phase", (f'sum by (phase) (max by (trainer_namespace, phase) ({of("trainyard_jobs")}))', "{{phase}}"), "none", stacked=True,
               steps=True),
        series("Pods of jobs", [(nodes("target"), "requested"), (nodes("active"), "there"), (nodes("ready"), "ready")], "none", steps=True),
        series("Restarts by class", (f'sum by (class) (increase({of("trainyard_restarts_total")}[{RATE}]))', "{{class}}"), "none", stacked=True),
        bars("Restarts of the last hour", (f'topk(10, sum by ({JOB_LABELS}) (increase({of("trainyard_restarts_total")}[1h])))', JOB_LEGEND), "none",
             decimals=1, what="The ten jobs with the most", links=TO_JOB),
        bars("Lowest goodput", ("bottomk(10, " + by_job(of("trainyard_goodput_ratio")) + ")", JOB_LEGEND), "percentunit", most=1, decimals=1,
             what="The ten jobs whose time advanced their model least, of those that the operator has", links=TO_JOB),
        series("Where the time goes", (f'sum by (category) (rate({of("trainyard_goodput_seconds_total")}[10m]))', "{{category}}"), "none", stacked=True,
               what="Of all jobs together, in seconds per second"),
        series("Tokens per second", ("topk(20, " + by_job(of("trainyard_tokens_per_second")) + ")", JOB_LEGEND), links=TO_JOB),
        series("Age of the newest checkpoint",
               (f'topk(20, time() - {by_job(of("trainyard_checkpoint_timestamp_seconds") + " > 0")})', JOB_LEGEND), "s", links=TO_JOB),
    ])


def reconciles():
    return ("The operator", [
        series("Reconciles", (f'sum by (result) (rate({ours("controller_runtime_reconcile_total")}[{RATE}]))', "{{result}}"), "ops", stacked=True, width=8),
        series("Time of a reconcile", [quantile(q, "controller_runtime_reconcile_time_seconds") for q in (0.5, 0.9, 0.99)], "s", width=8),
        series("Workers", [(f'sum({ours("controller_runtime_active_workers")})', "busy"),
                           (f'max({ours("controller_runtime_max_concurrent_reconciles")})', "all of one operator")], "none", width=8),
        series("Jobs that wait for a worker", [(f'sum({ours("workqueue_depth")})', "waiting")], "none", width=8),
        series("Time until a worker is free", [quantile(q, "workqueue_queue_duration_seconds") for q in (0.5, 0.99)], "s", width=8),
        series("Queue", [(f'sum(rate({ours("workqueue_adds_total")}[{RATE}]))', "added"), (f'sum(rate({ours("workqueue_retries_total")}[{RATE}]))', "put back")],
               "ops", width=8),
    ])


def api_server():
    return ("API server and agents", [
        series("Requests to the API server", (f"sum by (method, code) (rate(rest_client_requests_total[{RATE}]) {OURS})", "{{method}} {{code}}"), "reqps",
               stacked=True, width=8),
        series("Requests it refused", (f'sum(rate(rest_client_requests_total{{code=~"429|5..|<error>"}}[{RATE}]) {OURS}) or vector(0)', "429, 5xx, none"),
               "reqps", width=8, what="Answered with 429 or 5xx, or not at all"),
        series("Objects in the cache", ("max by (kind) (trainyard_cache_objects)", "{{kind}}"), "none", width=8),
        series("Control streams", ("sum(trainyard_control_streams)", "open"), "none", width=8, steps=True, what="Of the agents in the pods of jobs"),
        series("Control streams let in and refused", (f"sum by (result) (rate(trainyard_control_stream_reviews_total[{RATE}]))", "{{result}}"), "ops", width=8),
        series("Lists and watches begun", [(f"sum(rate(trainyard_cache_lists_total[{RATE}]))", "lists"),
                                           (f"sum(rate(trainyard_cache_watches_total[{RATE}]))", "watches")], "ops", width=8),
    ])


def make():
    return dashboard(
        "trainyard-fleet", "Trainyard / Fleet", "All TrainingJobs, and the operator that runs them",
        [variable("namespace", "label_values(trainyard_jobs, trainer_namespace)", "Namespace", several=True)],
        [summary(), jobs(), reconciles(), api_server()], since="now-6h", refresh="1m")
