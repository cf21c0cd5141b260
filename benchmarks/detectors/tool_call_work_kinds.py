"""Conversations that only look as if they looped, by why they are right (research: complaints that users of agent tools
filed about loop detectors)."""

from __future__ import annotations

import json
from collections.abc import Callable

from checkengine.benchmarks.detectors.tool_call_script import Script, looping_call
from checkengine.benchmarks.detectors.tool_call_worlds import CHANGES, CITIES, NAMES, NOUNS, READS, VERBS

Maker = Callable[[Script], None]


BUSY = (
    '{"status": "running"}',
    "still running",
    '{"state": "IN_PROGRESS", "percent": 40}',
    "Job is pending in the queue.",
    '{"job": {"id": 77, "status": "queued"}}',
    "STATUS: building",
    "not ready yet",
)


def polling(script: Script) -> None:
    """A long job: the same call and the same reply until it is done."""
    chance = script.chance
    name = chance.choice(
        ("get_job_status", "check_build", "poll_task", "getDeploymentStatus", "job_progress", "describe_instance")
    )
    arguments, busy = {"job_id": chance.identifier()}, chance.choice(BUSY)
    pauses, counts = chance.random() < 0.4, chance.random() < 0.3
    for turn in range(chance.randint(4, 40)):
        script.call(name, arguments, f'{{"status": "running", "progress": {min(99, 3 * turn)}}}' if counts else busy)
        if pauses:
            script.call(
                *chance.choice(
                    (
                        ("sleep", {"seconds": 30}, "ok"),
                        ("wait", {"ms": 5000}, ""),
                        ("bash", {"command": "sleep 20"}, ""),
                    )
                )
            )
    script.call(name, arguments, '{"status": "succeeded"}')


def polling_by_shell(script: Script) -> None:
    chance = script.chance
    command, reply = chance.choice(
        (
            ("sleep 30 && kubectl get pods", "NAME   READY   STATUS\napi-1  0/1     Pending"),
            ("gh run view 81 --json status", '{"status":"in_progress"}'),
            ("squeue -u me", "JOBID STATE TIME\n8123 PENDING 0:00"),
            ("sleep 60; tail -1 train.log", "epoch 3/10 still training"),
        )
    )
    for _ in range(chance.randint(4, 20)):
        script.call("bash", {"command": command}, reply)


def task_list(script: Script) -> None:
    """Others work; the agent looks at the list between its own calls."""
    chance = script.chance
    tasks = json.dumps(
        [
            {"id": n, "owner": chance.choice(NAMES), "status": chance.choice(("in_progress", "pending"))}
            for n in range(4)
        ]
    )
    for _ in range(chance.randint(4, 12)):
        script.call(chance.choice(("task_list",)), {}, tasks)
        script.fresh(chance.randint(0, 2))


def inbox(script: Script) -> None:
    for _ in range(script.chance.randint(4, 15)):
        script.call("check_inbox", {"agent": "peer"}, "No new messages.")


def batch_changes(script: Script) -> None:
    """Many files, one reply."""
    tool = script.chance.choice(CHANGES[:7])
    reply = tool.result(script.chance)
    for _ in range(script.chance.randint(8, 50)):
        script.call(tool.name, tool.arguments(script.chance), reply)


def test_runs(script: Script) -> None:
    """Tests again after each fix, and often the same two still fail."""
    chance = script.chance
    run = chance.choice(
        (
            ("run_tests", {}),
            ("bash", {"command": "pytest -q tests"}),
            ("execute_command", {"cmd": "npm test"}),
            ("run_tests", {"path": "tests/unit"}),
        )
    )
    reply = chance.choice(
        ("2 failed, 31 passed", "FAILED tests/test_a.py::test_b - AssertionError", "Error: 1 test failed\nexit code 1")
    )
    for _ in range(chance.randint(4, 12)):
        for _ in range(chance.randint(0, 2)):
            script.use(chance.choice(script.tools))
        script.use(chance.choice((*CHANGES[:4], CHANGES[7])))
        script.call(*run, reply)
    script.call(*run, "33 passed")


def screen_steps(script: Script) -> None:
    """Scroll, press, next: the same step with the same "ok", each one moves on."""
    chance = script.chance
    name, arguments = chance.choice(
        (
            ("scroll", {"direction": "down"}),
            ("press_key", {"key": "Tab"}),
            ("click_next", {}),
            ("browser_scroll", {"dy": 600}),
            ("step", {}),
        )
    )
    for _ in range(chance.randint(4, 16)):
        script.call(name, arguments, chance.choice(("ok", "ok", "ok")))
        if chance.random() < 0.3:
            script.call("get_screen_text", {}, chance.sentence())


def unreachable(script: Script) -> None:
    """Rate limits and 5xx, tried again until it works."""
    chance = script.chance
    name, arguments, result = looping_call(script)
    reply = chance.choice(
        (
            "Error: 429 Too Many Requests",
            '{"error": {"code": 503, "message": "Service Unavailable"}}',
            "HTTP 502 Bad Gateway",
            "Request timed out after 30s",
            "upstream connect error: connection refused",
            '{"status": 500, "error": "Internal Server Error"}',
            "Error: rate limit exceeded, retry after 10 s",
            "model overloaded, please try again later",
            "ReadTimeout: local model did not answer",
        )
    )
    for _ in range(chance.randint(3, 12)):
        script.call(name, arguments, reply)
        if chance.random() < 0.3:
            script.call("sleep", {"seconds": 5}, "")
    script.call(name, arguments, result)


def re_reads(script: Script) -> None:
    """The same file now and then in a long piece of work, with changes of other files in between."""
    chance = script.chance
    arguments, content = {"path": chance.path()}, READS[0][0].result(chance)
    for _ in range(chance.randint(3, 7)):
        script.call("read_file", arguments, content)
        for _ in range(chance.randint(2, 5)):
            script.use(chance.choice(READS[0]))
        if chance.random() < 0.6:
            script.use(chance.choice(CHANGES[:4]))


def memory_recall(script: Script) -> None:
    chance = script.chance
    arguments, result = {"query": chance.phrase()}, chance.choice(("No memories found.", READS[2][1].result(chance)))
    for _ in range(chance.randint(2, 5)):
        script.call("recall_memory", arguments, result)
        script.fresh(chance.randint(3, 6))


def exploration(script: Script) -> None:
    """Everything at once, then one by one."""
    for _ in range(script.chance.randint(1, 3)):
        tools = [script.chance.choice(script.tools) for _ in range(script.chance.randint(4, 15))]
        script.calls([(tool.name, tool.arguments(script.chance), tool.result(script.chance)) for tool in tools])
    tool = script.chance.choice(script.tools)
    for _ in range(script.chance.randint(4, 12)):
        script.use(tool)


def paging(script: Script) -> None:
    chance = script.chance
    relative = chance.random() < 0.5
    for page in range(chance.randint(4, 20)):
        script.call(
            "next_page" if relative else "list_items", {} if relative else {"page": page}, READS[1][0].result(chance)
        )


def queue_work(script: Script) -> None:
    """The same call hands out one piece of work after another."""
    for item in range(script.chance.randint(4, 12)):
        script.call(
            "claim_next_item",
            {"queue": "images"},
            json.dumps({"id": f"img_{script.chance.hexadecimal(8)}", "n": item, "kind": "resize"}),
        )
        script.call("resize", {"item": item}, "ok")


def nothing_there(script: Script) -> None:
    """Different questions that have no answer: dates, ids, topics."""
    chance = script.chance
    for _ in range(chance.randint(4, 9)):
        script.call(
            *chance.choice(
                (
                    (
                        "search_direct_flight",
                        {"origin": chance.choice(CITIES), "destination": chance.choice(CITIES), "date": chance.date()},
                        "[]",
                    ),
                    ("get_user", {"id": chance.randint(1, 9999)}, '{"error": "user not found"}'),
                    ("grep_search", {"pattern": f"{chance.choice(VERBS)}_{chance.choice(NOUNS)}"}, "No matches found"),
                )
            )
        )


def same_readings(script: Script) -> None:
    """Many devices, all well."""
    reply = json.dumps(
        {"temperature": 20, "unit": "C", "healthy": True, "firmware": "4.2.1", "site": script.chance.choice(CITIES)}
    )
    for sensor in range(script.chance.randint(5, 20)):
        script.call("read_sensor", {"sensor": sensor}, reply)


def user_asks_again(script: Script) -> None:
    """Every turn is the user's."""
    name, arguments, result = looping_call(script)
    for _ in range(script.chance.randint(3, 8)):
        script.call(name, arguments, result)
        script.say(script.chance.sentence())
        script.user(script.chance.choice(("And now?", "Check again please.", script.chance.sentence())))


def checks_after_changes(script: Script) -> None:
    """Lint, type check, status: after each change, and all is well."""
    chance = script.chance
    check = chance.choice(
        (
            ("lint", {}, "No issues found."),
            ("bash", {"command": "git status --short"}, " M src/a.py"),
            ("type_check", {"path": "src"}, "Success: no issues found in 12 source files"),
        )
    )
    for _ in range(chance.randint(4, 10)):
        script.use(chance.choice(CHANGES[:4]))
        script.call(*check)


def dice_and_clocks(script: Script) -> None:
    chance = script.chance
    for _ in range(chance.randint(4, 12)):
        if chance.random() < 0.5:
            script.call("roll_dice", {"sides": 6}, str(chance.randint(1, 6)))
        else:
            script.call("get_current_time", {}, chance.moment(0, chance.randint(0, 30000)))
            script.fresh(1)


def notes_and_thoughts(script: Script) -> None:
    for _ in range(script.chance.randint(4, 12)):
        script.call(
            "think",
            {"thought": script.chance.sentence()},
            script.chance.choice(("", "", "Your thought has been logged.")),
        )
        script.fresh(script.chance.randint(0, 1))


def plain_work(script: Script) -> None:
    script.fresh(script.chance.randint(5, 40))


def two_looks(script: Script) -> None:
    """The same call twice is no loop yet."""
    for _ in range(script.chance.randint(2, 4)):
        call = looping_call(script)
        script.call(*call)
        script.call(*call)
        script.fresh(script.chance.randint(1, 3))


WORK: tuple[Maker, ...] = (
    polling,
    polling_by_shell,
    task_list,
    inbox,
    batch_changes,
    test_runs,
    screen_steps,
    unreachable,
    re_reads,
    memory_recall,
    exploration,
    paging,
    queue_work,
    nothing_there,
    same_readings,
    user_asks_again,
    checks_after_changes,
    dice_and_clocks,
    notes_and_thoughts,
    plain_work,
    two_looks,
)
