"""The job for a scheduler, as text: a task for each bundle, and exit codes that tell a result from a failure.

`checkengine replay` ends with 0 (does not fire again), 1 (reproduced), 125 (cannot be judged) or 129 (damaged): all
four are results, and running again changes none of them. Whatever else a task ends with (a node that died, a process
that was killed) is worth another try.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from checkengine.guards.errors import UserError

OPTIONS = ("--json", "--repeats", "0")
"""The exit code is asked for: runs in fresh processes before a conviction are for a bundle that is looked into."""
RESULTS = (1, 125, 129)
"""Exit codes other than 0 that are results."""
MOST_CONFIG_MAP_BYTES = 900_000
"""Kubernetes takes no object above 1 MiB."""


def kubernetes(names: Sequence[str], store: str, workers: int, image: str) -> str:
    """A ConfigMap with the bundles' names and an Indexed Job, as one JSON list that `kubectl apply -f -` takes.

    An index that ends with a result other than 0 fails at once and is listed in the Job's failedIndexes; one that was
    killed runs again (backoffLimitPerIndex, podFailurePolicy: Kubernetes 1.33).
    """
    listed = "\n".join(names) + "\n"
    if len(listed) > MOST_CONFIG_MAP_BYTES:
        raise UserError(f"{len(names)} names do not fit into one ConfigMap: fan out over a part of the store at a time")
    name = "checkengine-replay"
    script = 'exec checkengine replay "$STORE/$(sed -n "$((JOB_COMPLETION_INDEX + 1))p" /bundles/names)" --repeats 0'
    container = {
        "name": "replay",
        "image": image,
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": "STORE", "value": store}],
        "volumeMounts": [{"name": "names", "mountPath": "/bundles", "readOnly": True}],
    }
    rules = [
        {"action": "FailIndex", "onExitCodes": {"containerName": "replay", "operator": "In", "values": list(RESULTS)}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(names),
            "parallelism": min(workers, len(names)),
            "backoffLimitPerIndex": 3,
            "maxFailedIndexes": len(names),
            "podFailurePolicy": {"rules": rules},
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [container],
                    "volumes": [{"name": "names", "configMap": {"name": name}}],
                }
            },
        },
    }
    names_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"names": listed}}
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [names_map, job]}, indent=2)


def slurm(names: Sequence[str], store: str, workers: int) -> str:
    """A batch script with an array task for each bundle. A task whose node fails is queued again; its verdict goes
    to a file of its own, and its exit code to `sacct`."""
    quoted = "\n".join(f"  {shlex.quote(name)}" for name in names)
    return f"""#!/bin/bash
#SBATCH --job-name=checkengine-replay
#SBATCH --array=0-{len(names) - 1}%{workers}
#SBATCH --requeue
#SBATCH --output=checkengine-replay-%A_%a.out
BUNDLES=(
{quoted}
)
name="${{BUNDLES[$SLURM_ARRAY_TASK_ID]}}"
checkengine replay {shlex.quote(store)}/"$name" {" ".join(OPTIONS)} > "checkengine-replay-$name.json"
code=$?
echo "$name $code"
exit $code
"""


def ray(names: Sequence[str], store: str, workers: int) -> str:
    """A script for `ray job submit -- python FILE`: one task a bundle, tried again where its worker dies."""
    return f"""import json
import subprocess

import ray

STORE = {json.dumps(store)}
NAMES = {json.dumps(list(names), indent=4)}


@ray.remote(num_cpus=1, max_retries=3)
def replay(name):
    done = subprocess.run(["checkengine", "replay", f"{{STORE}}/{{name}}", *{json.dumps(OPTIONS)}], capture_output=True)
    if done.returncode not in (0, 1, 125, 129):
        raise RuntimeError(f"{{name}}: exit code {{done.returncode}}")
    return name, done.returncode


ray.init()
waiting, running = list(NAMES), []
while waiting or running:
    while waiting and len(running) < {workers}:
        running.append(replay.remote(waiting.pop()))
    done, running = ray.wait(running)
    for name, code in ray.get(done):
        print(json.dumps({{"bundle": name, "exit_code": code}}), flush=True)
"""
