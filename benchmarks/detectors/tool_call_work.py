"""Conversations that only look like loops, in short: each a list of (tool, arguments, result), a call a turn."""

from __future__ import annotations

from json import dumps as J
from typing import Any

Calls = list[tuple[Any, ...]]

WORKING: dict[str, Calls] = {
    "poll": [("get_job", {"id": "j1"}, '{"status":"running"}')] * 20,
    "poll 2": [("check_deployment", {"id": "j1"}, '{"done": false}')] * 20,
    "poll 3": [("wait_for_build", {"id": "j1"}, "building...")] * 20,
    "poll 4": [("bash", {"command": "sleep 10; cat out.log"}, "")] * 12,
    "poll 5": [("get_training_run", {"id": "j1"}, '{"state":"training"}')] * 12,
    "poll 6": [("fetch_result", {"id": "j1"}, "202 Accepted: not ready")] * 12,
    "poll 7": [("list_pods", {}, "web-0 0/1 ContainerCreating")] * 8,
    "poll 8": [("job_status", {"id": "j1"}, '{"progress": 0}')] * 8,
    "poll 9": [("get_ci", {"sha": "abc"}, '{"checks":"pending"}')] * 8,
    "poll 10": [("http_get", {"url": "http://localhost/job/1"}, '{"job":1,"status":"IN_PROGRESS"}')] * 8,
    "poll 11": [
        ("bash", {"command": "docker ps"}, "CONTAINER ID  IMAGE  STATUS\nab12  web  Up 3 seconds (health: starting)")
    ]
    * 8,
    "poll 12": [("bash", {"command": "tail -n 1 build.log"}, "[ 45%] Building CXX object")] * 8,
    "poll 13": [c for i in range(8) for c in (("get_status", {"id": 1}, "RUNNING"), ("sleep", {"s": 5}, "slept"))],
    "poll 14": [("query_job", {"id": "j1"}, '{"status":"running"}')] * 20,
    "tasks": [("task_list", {}, "1. [in_progress] a\n2. [pending] b")] * 10,
    "tasks 2": [("list_tasks", {}, '[{"id":1,"owner":"peer","state":"assigned"}]')] * 10,
    "msgs": [("read_messages", {}, "[]")] * 10,
    "batch": [("move_file", {"src": f"a{i}", "dst": f"b{i}"}, "moved") for i in range(20)],
    "batch 2": [("edit", {"file": f"a{i}", "text": "import x"}, "ok") for i in range(20)],
    "batch 3": [("process_row", {"row": i}, '{"result":"processed","warnings":[]}') for i in range(20)],
    "batch same": [
        ("replace", {"file": f"a{i}", "old": "foo", "new": "bar"}, "Replaced 1 occurrence") for i in range(20)
    ],
    "tests": [
        c
        for i in range(8)
        for c in (("run_tests", {}, "2 failed, 3 passed"), ("edit_file", {"path": "a.py", "patch": f"fix {i}"}, "ok"))
    ],
    "tests 2": [
        c
        for i in range(8)
        for c in (
            ("bash", {"command": "pytest"}, "1 failed"),
            (
                "str_replace_editor",
                {"command": "str_replace", "path": "a", "old_str": f"{i}", "new_str": "y"},
                "The file a has been edited.",
            ),
        )
    ],
    "tests 3": [
        c
        for i in range(8)
        for c in (("bash", {"command": "make test"}, "FAIL"), ("bash", {"command": f"sed -i s/{i}/x/ a.c"}, ""))
    ],
    "tests 4": [
        c
        for i in range(8)
        for c in (
            ("run_tests", {}, "2 failed, 3 passed"),
            ("modify_code", {"path": "a.py", "patch": f"fix {i}"}, "done"),
        )
    ],
    "tests 5": [
        c
        for i in range(8)
        for c in (
            ("run_tests", {}, "2 failed, 3 passed"),
            ("read_file", {"path": f"a{i}.py"}, f"x{i}"),
            ("fix", {"path": "a.py", "patch": f"fix {i}"}, "done"),
        )
    ],
    "tests 6": [
        c for i in range(6) for c in (("run_tests", {}, f"{9 - i} failed"), ("edit_file", {"path": "a.py"}, "ok"))
    ],
    "tests 7": [
        c
        for i in range(6)
        for c in (("run_tests", {}, "1 failed"), ("bash", {"command": f"cat > a.py <<'EOF'\nx={i}\nEOF"}, ""))
    ],
    "tests 8": [
        c
        for i in range(6)
        for c in (
            ("bash", {"command": "go test ./..."}, "FAIL pkg"),
            ("code_edit", {"path": "a.go", "diff": f"x={i}"}, "Applied"),
        )
    ],
    "infra": [("fetch", {"url": "u"}, "503 Service Unavailable")] * 8,
    "infra 2": [("fetch", {"url": "u"}, '{"error":"rate_limit_exceeded"}')] * 8,
    "infra 3": [("llm", {"p": "u"}, "Error: timed out")] * 8,
    "infra 4": [("fetch", {"url": "u"}, "Error 500")] * 8,
    "infra 5": [("fetch", {"url": "u"}, "HTTP 429")] * 8,
    "infra 6": [("fetch", {"url": "u"}, "Connection reset by peer")] * 8,
    "infra 7": [("fetch", {"url": "u"}, '{"status_code": 504}')] * 8,
    "reread": [
        c
        for i in range(3)
        for c in (("read_file", {"path": "x"}, "content of x"), ("read_file", {"path": f"y{i}"}, f"content {i}"))
    ],
    "reread edits": [
        c
        for i in range(8)
        for c in (("read_file", {"path": "x"}, "content of x"), ("edit_file", {"path": f"y{i}", "t": "t"}, "ok"))
    ],
    "reread 3": [
        c
        for i in range(4)
        for c in (
            ("read_file", {"path": "x"}, "content of x"),
            *[("read_file", {"path": f"y{i}{k}"}, f"content {i}{k}") for k in range(3)],
        )
    ],
    "pages": [("list_items", {"page": i}, f"items {i}") for i in range(10)],
    "oks": [("click", {"x": i, "y": 2}, "ok") for i in range(10)],
    "scroll": [("scroll", {"dir": "down"}, "ok")] * 10,
    "scroll 2": [("computer", {"action": "scroll"}, "ok")] * 10,
    "key": [("computer", {"action": "key", "text": "Down"}, "")] * 6,
    "explore": [("read_file", {"path": f"y{i}"}, "") for i in range(10)],
    "notfound": [("find_file", {"name": f"n{i}.py"}, "not found") for i in range(10)],
    "grep none": [
        ("grep", {"pattern": p}, "No matches found")
        for p in (
            "handle_login",
            "UserSession",
            "token_refresh",
            "AuthMiddleware",
            "verify_jwt",
            "SessionStore",
            "oauth_callback",
            "loginView",
        )
    ],
    "weather": [
        ("get_weather", {"city": c}, '{"temp": 20, "sky": "clear", "wind": "calm", "unit": "C"}')
        for c in ("Rome", "Paris", "Oslo", "Lima", "Bonn", "Cork")
    ],
    "search topics": [
        ("web_search", {"query": q}, "Search is limited in this environment. No external results are available.")
        for q in ("rust lifetimes", "history of rome", "cake recipe")
    ],
    "calc": [("calculate", {"expression": f"{i}*2"}, str(i * 2)) for i in range(10)],
    "roll": [("roll_dice", {"n": 6}, "4")] * 5,
    "3x": [("search", {"q": "x"}, "A"), ("search", {"q": "x"}, "A"), ("open", {"i": 1}, "p")],
    "user": [x for i in range(6) for x in (("get_balance", {"a": 1}, "100"), ("SAY", "100"), ("USER", f"again {i}"))],
    "user 2": [x for i in range(6) for x in (("get_balance", {"a": 1}, "100"), ("SAY", "100"), ("USER", "again"))],
    "price": [("get_price", {"sym": "X"}, J({"price": 100 + i * 0.37})) for i in range(8)],
    "sensor": [("read_temp", {}, str(20.1 + i / 10)) for i in range(8)],
    "next": [("get_next_page", {}, f"page {i}") for i in range(8)],
    "heartbeat": [c for i in range(8) for c in (("heartbeat", {}, "ok"), ("process", {"i": i}, "done"))],
    "save": [c for i in range(8) for c in (("type", {"t": f"p{i}"}, "ok"), ("save", {}, "ok"))],
    "screens": [c for i in range(8) for c in (("click", {"x": i}, "ok"), ("screenshot", {}, f"image {i}"))],
    "screens same": [c for i in range(8) for c in (("click", {"x": i}, "ok"), ("screenshot", {}, "[image]"))],
    "git": [
        c
        for i in range(6)
        for c in (
            ("bash", {"command": "git status"}, "clean"),
            ("bash", {"command": f"cat f{i}"}, f"x{i}"),
            ("bash", {"command": f"python run.py {i}"}, f"out {i}"),
        )
    ],
    "queue": [
        c for i in range(6) for c in (("get_task", {}, J({"id": i, "kind": "resize"})), ("process", {"id": i}, "done"))
    ],
    "undo": [("undo", {}, "ok")] * 6,
    "log": [c for i in range(8) for c in (("log_progress", {"m": "working"}, "logged"), ("compute", {"i": i}, str(i)))],
    "mem": [
        c
        for i in range(4)
        for c in (
            ("memory_search", {"query": "prefs"}, "likes tea"),
            ("search", {"query": f"tea {i}"}, f"r{i}"),
            ("fetch", {"u": f"{i}"}, f"p{i}"),
        )
    ],
    "poll eta": [("get_export", {"id": 1}, J({"state": "exporting", "eta": 30}))] * 10,
    "poll up": [("wait_for_selector", {"sel": "#a"}, "timeout waiting for selector")] * 5,
    "poll k8s": [("kubectl", {"args": "get pods"}, "web-1 0/1 Pending 0 3s")] * 10,
    "poll log": [
        ("read_log", {"file": "train.log", "tail": 1}, f"step {i * 100}/1000 loss {1 / (i + 1):.3f}") for i in range(9)
    ],
    "poll ci": [("get_workflow_run", {"id": 5}, J({"id": 5, "status": "in_progress", "conclusion": None}))] * 12,
    "poll order": [("get_payment_status", {"id": 5}, J({"status": "PROCESSING"}))] * 12,
    "poll dl": [("download_status", {"id": 5}, J({"bytes": i * 1000, "total": 9000})) for i in range(9)],
    "poll vm": [("describe_instances", {"id": "i-1"}, J({"Instances": [{"State": {"Name": "pending"}}]}))] * 9,
    "poll render": [("get_render", {"id": "1"}, "Rendering frame 3 of 10")] * 6,
    "poll quiet": [
        c
        for i in range(6)
        for c in (("bash", {"command": "sleep 30"}, ""), ("bash", {"command": "tail -5 out.log"}, "compiling foo.c"))
    ],
    "poll same wait": [("wait", {"seconds": 60}, "Waited 60 seconds")] * 10,
    "poll agents": [("list_agents", {}, J([{"name": "a", "busy": True}]))] * 8,
    "peers": [
        c
        for i in range(6)
        for c in (("task_list", {}, "#1 open (bob)\n#2 open (eve)"), ("read_file", {"path": f"s{i}.py"}, f"src {i}"))
    ],
    "get_messages": [("get_messages", {"channel": "x"}, J({"messages": []}))] * 7,
    "batch rename": [
        ("rename_file", {"old": f"IMG_{i}.jpg", "new": f"trip_{i}.jpg"}, "Renamed successfully.") for i in range(15)
    ],
    "batch delete": [("delete_record", {"id": i}, J({"deleted": 1})) for i in range(15)],
    "batch insert": [("insert_row", {"table": "t", "values": [i, i + 1]}, "1 row inserted") for i in range(15)],
    "batch update": [
        ("update_cell", {"cell": f"A{i}", "value": i}, J({"updatedCells": 1, "spreadsheet": "s1", "range": "Sheet1"}))
        for i in range(15)
    ],
    "batch shell": [("bash", {"command": f"mv a{i} b{i}"}, "") for i in range(15)],
    "batch tags": [
        (
            "add_label",
            {"issue": i, "label": "bug"},
            J([{"name": "bug", "color": "red", "description": "Something isn't working"}]),
        )
        for i in range(15)
    ],
    "batch translate": [("set_translation", {"key": f"k{i}", "text": f"t{i}"}, "ok") for i in range(15)],
    "batch http": [("post", {"url": "/x", "body": {"i": i}}, J({"status": 201})) for i in range(12)],
    "batch upload": [
        ("upload_image", {"file": f"{i}.png"}, "Upload complete. Thumbnail generated. Indexed in the gallery.")
        for i in range(12)
    ],
    "batch get same": [
        ("get_feature_flag", {"user": i}, J({"flag": "new_ui", "enabled": False, "reason": "default"}))
        for i in range(12)
    ],
    "batch validate": [("validate_email", {"email": f"u{i}@x.y"}, J({"valid": True})) for i in range(12)],
    "batch classify": [("classify", {"text": f"some review text number {i}"}, "positive") for i in range(12)],
    "batch search empties": [
        ("search_contacts", {"name": n}, "No contacts found")
        for n in ("Ann Lee", "Bob Ray", "Cy Fox", "Di Poe", "Ed Orr", "Flo Nix", "Gus Hay")
    ],
    "flights": [("search_flights", {"from": "A", "to": "B", "date": f"2026-03-{d:02d}"}, "[]") for d in range(1, 9)],
    "calendar": [("find_slot", {"day": d}, "No free slots") for d in ("Mon", "Tue", "Wed", "Thu", "Fri")],
    "tests edit fail": [
        c
        for i in range(6)
        for c in (
            ("edit_file", {"path": "a.py", "diff": f"d{i}"}, "Edited a.py"),
            ("bash", {"command": "python -m pytest -x"}, "E   assert 1 == 2\n1 failed in 0.03s"),
        )
    ],
    "tests write": [
        c
        for i in range(6)
        for c in (
            ("create_file", {"path": "a.py", "text": f"d{i}"}, "File created"),
            ("execute", {"cmd": "pytest"}, "1 failed"),
        )
    ],
    "tests replace": [
        c
        for i in range(6)
        for c in (
            ("replace_in_file", {"path": "a.py", "diff": f"d{i}"}, "The content was successfully saved to a.py."),
            ("execute_command", {"command": "npm test"}, "Tests: 1 failed"),
        )
    ],
    "tests multi": [
        c
        for i in range(5)
        for c in (
            ("read_file", {"path": "a.py"}, f"v{i}"),
            ("write_to_file", {"path": "a.py", "content": f"v{i + 1}"}, "saved"),
            ("run_tests", {}, "FAILED"),
        )
    ],
    "tests insert": [
        c
        for i in range(5)
        for c in (("insert_lines", {"path": "a.py", "at": i}, "ok"), ("compile", {}, "error: expected ;"))
    ],
    "tests apply": [
        c for i in range(5) for c in (("applyEdit", {"path": "a.py", "at": i}, "ok"), ("runTests", {}, "1 failing"))
    ],
    "tests notebook": [
        c
        for i in range(5)
        for c in (
            ("notebook_edit_cell", {"cell": 1, "src": f"x={i}"}, "ok"),
            ("notebook_run_cell", {"cell": 1}, "NameError: y"),
        )
    ],
    "tests fix name": [c for i in range(5) for c in (("try_fix", {"n": i}, "applied"), ("check", {}, "still failing"))],
    "tests deploy": [
        c
        for i in range(5)
        for c in (
            ("update_config", {"k": i}, "ok"),
            ("restart_service", {"n": "web"}, "ok"),
            ("get_health", {"n": "web"}, "unhealthy"),
        )
    ],
    "infra 529": [
        ("llm", {"p": 1}, J({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}))
    ]
    * 6,
    "infra dns": [("fetch", {"u": 1}, "getaddrinfo ENOTFOUND api.example.com")] * 4,
    "infra gw": [("fetch", {"u": 1}, "<html><title>502 Bad Gateway</title></html>")] * 6,
    "infra conn": [
        ("sql", {"q": "select 1"}, "psycopg2.OperationalError: could not connect to server: Connection refused")
    ]
    * 6,
    "infra exc": [
        ("fetch", {"u": 1}, "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='x', port=80): Read timed out.")
    ]
    * 6,
    "infra quota": [("gen", {"u": 1}, "RESOURCE_EXHAUSTED: quota exceeded, retry in 20s")] * 6,
    "infra lock": [("apt", {"u": 1}, "E: Could not get lock /var/lib/dpkg/lock. It is held by process 123")] * 4,
    "reread context": [
        c
        for i in range(5)
        for c in (
            ("read_file", {"path": "PLAN.md"}, "plan"),
            ("read_file", {"path": f"a{i}"}, f"a{i}"),
            ("write_file", {"path": f"b{i}", "content": "x"}, "ok"),
        )
    ],
    "todo": [
        c for i in range(6) for c in (("todo_read", {}, "- [ ] a\n- [ ] b"), ("read_file", {"path": f"a{i}"}, f"a{i}"))
    ],
    "git st": [
        c
        for i in range(6)
        for c in (
            ("git_status", {}, "clean"),
            ("git_commit", {"m": f"m{i}"}, "[main abc] m"),
        )
    ],
    "recall": [
        c
        for i in range(3)
        for c in (
            ("memory_recall", {"key": "user"}, "Ann"),
            ("search", {"q": f"{i}"}, f"r{i}"),
            ("read", {"p": f"{i}"}, f"w{i}"),
            ("summ", {"p": f"{i}"}, f"v{i}"),
        )
    ],
    "ui": [c for i in range(6) for c in (("click", {"ref": f"e{i}"}, "Clicked"), ("snapshot", {}, f"page {i}"))],
    "ui tab": [("press", {"key": "Tab"}, "")] * 8,
    "ui back": [c for i in range(6) for c in (("click", {"ref": f"e{i}"}, "Clicked"), ("go_back", {}, "ok"))],
    "ui list": [
        c
        for i in range(6)
        for c in (
            ("click", {"ref": f"e{i}"}, "ok"),
            ("get_text", {"sel": "h1"}, f"Title {i}"),
            ("navigate_back", {}, "Navigated to list page with 10 items"),
        )
    ],
    "game": [("move", {"dir": "north"}, "You walk north.")] * 6,
    "dice": [("roll_dice", {"sides": 20}, str(x)) for x in (4, 4, 17, 9, 4, 4, 4)],
    "coin": [("flip_coin", {}, "heads")] * 5,
    "explore side by side": [("ls", {"p": f"d{i}"}, "(empty)") for i in range(9)],
    "next tok": [("next_record", {}, J({"id": i, "v": "a"})) for i in range(9)],
    "dequeue": [("receive_message", {"queue": "q"}, J({"id": f"m{i}", "body": "resize"})) for i in range(9)],
    "hit": [c for i in range(6) for c in (("get_balance", {"a": "x"}, f"{100 - i}"), ("transfer", {"to": i}, "ok"))],
    "calc same": [("calculator", {"expr": f"{i}+{4 - i}"}, "4") for i in range(5)],
    "convert": [("convert", {"amount": i, "from": "USD", "to": "USD"}, str(i)) for i in range(6)],
    "health": [("health_check", {}, "ok")] * 8,
    "log line again": [("log", {"msg": "working"}, "ok")] * 4,
    "screenshot": [c for i in range(6) for c in (("scroll", {"dy": 300}, "ok"), ("screenshot", {}, "<image>"))],
}
