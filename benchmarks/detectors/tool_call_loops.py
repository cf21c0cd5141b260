"""Conversations that loop, in short: each a list of (tool, arguments, result), a call a turn."""

from __future__ import annotations

from json import dumps as J
from typing import Any

Calls = list[tuple[Any, ...]]

LOOPING: dict[str, Calls] = {
    "identical 5": [("search", {"q": "x"}, "result A")] * 5,
    "identical generic": [("tool_a", {"x": 1}, "r")] * 5,
    "identical error": [("read_file", {"path": "a"}, "Error: ENOENT: no such file or directory")] * 5,
    "identical not found": [("get_user", {"id": "1"}, '{"error":"not found"}')] * 5,
    "identical write": [("write_file", {"path": "a", "content": "x"}, "ok")] * 5,
    "alternate": [("a", {"x": 1}, "A"), ("b", {"y": 2}, "B")] * 3,
    "period 3": [("read", {"f": "a"}, "A"), ("edit", {"f": "a", "s": "q"}, "ok"), ("test", {}, "1 failed")] * 3,
    "period 6": [(f"t{i}", {"y": i}, f"R{i}") for i in range(6)] * 3,
    "interleaved": [
        c for i in range(5) for c in (("search", {"q": "x"}, "res"), ("get_weather", {"city": f"c{i}"}, f"sunny {i}"))
    ],
    "interleaved fixed": [c for i in range(5) for c in (("search", {"q": "x"}, "res"), ("think", {"t": f"c{i}"}, ""))],
    "interleaved read": [
        c
        for i in range(5)
        for c in (("read_file", {"path": "x"}, "content of x"), ("read_file", {"path": f"y{i}"}, f"content {i}"))
    ],
    "interleaved note": [
        c for i in range(5) for c in (("search", {"q": "x"}, "res"), ("write_note", {"t": f"c{i}"}, "saved"))
    ],
    "timestamps json": [
        ("get_state", {"k": 1}, J({"value": 5, "timestamp": f"2026-01-01T00:00:{i:02d}Z"})) for i in range(5)
    ],
    "timestamps 2": [("get_state", {"k": 1}, J({"value": 5, "ts": 1700000000 + i})) for i in range(5)],
    "timestamps 3": [("bash", {"command": "date"}, f"Mon Nov 30 15:12:{i:02d} UTC 2026") for i in range(5)],
    "timestamps id": [("fetch", {"k": 1}, J({"value": 5, "id": i})) for i in range(5)],
    "timestamps rid": [("fetch", {"k": 1}, f"ok value=5 request_id={i * 977:x}") for i in range(5)],
    "timestamps time only": [("fetch", {"k": 1}, f"value 5 at 10:0{i}") for i in range(6)],
    "timestamps ctr": [("query", {"k": 1}, J({"rows": [1, 2], "elapsed_ms": i * 13 + 1})) for i in range(5)],
    "reworded": [
        ("web_search", {"query": q}, "1. Foo page\n2. Bar page")
        for q in (
            "best pizza rome",
            "rome best pizza",
            "pizza in rome best",
            "top pizza rome",
            "where pizza rome",
            "good pizza rome",
        )
    ],
    "reworded none": [
        ("search", {"query": q}, "No results")
        for q in (
            "best pizza rome",
            "rome best pizza",
            "pizza in rome best",
            "top pizza rome",
            "where pizza rome",
            "good pizza rome",
        )
    ],
    "reworded ids": [
        ("kb_lookup", {"text": q}, '["doc1","doc2"]')
        for q in (
            "reset password",
            "password reset",
            "how to reset password",
            "password reset help",
            "reset my password",
            "reset password steps",
        )
    ],
    "switch": [
        (n, {"query": "foo bar baz"}, "No results")
        for n in ("web_search", "wiki", "browse", "web_search", "wiki", "browse", "web_search")
    ],
    "switch error": [
        (n, {"path": "/etc/x"}, "Error: permission denied")
        for n in ("read_file", "open_file", "view", "bash_cat", "read_file", "view", "open_file")
    ],
    "switch 2": [
        ("read_file", {"path": "/etc/shadow"}, "permission denied"),
        ("bash", {"command": "cat /etc/shadow"}, "permission denied"),
        ("python", {"code": "open('/etc/shadow')"}, "permission denied"),
        ("read_file", {"path": "/etc/shadow"}, "permission denied"),
        ("bash", {"command": "sudo cat /etc/shadow"}, "permission denied"),
        ("python", {"code": "open('/etc/shadow').read()"}, "permission denied"),
        ("bash", {"command": "less /etc/shadow"}, "permission denied"),
    ],
    "switch diff replies": [
        (n, {k: "find the invoice of may"}, r)
        for n, k, r in (
            ("search_mail", "query", "no mails"),
            ("search_drive", "q", "0 files"),
            ("search_web", "query", "nothing"),
            ("search_mail", "query", "no mails"),
            ("search_drive", "q", "0 files"),
            ("search_web", "query", "nothing"),
        )
    ]
    * 1,
    "unrecorded": [("client_action", {"x": 1}, None)] * 7,
    "stub": [
        (
            "read_big",
            {"path": "x"},
            f"<persisted-output> Too large (1.2MB). Saved to: /home/u/.cache/tool-results/b{i}f{i}a91.txt",
        )
        for i in range(5)
    ],
    "uuid": [
        ("create_order", {"sku": 1}, J({"order_id": f"ord-{i * 7919 + 10000}", "status": "created"})) for i in range(5)
    ],
    "identical success json": [("get_user_details", {"user_id": "u1"}, J({"name": "Ann", "email": "a@b.c"}))] * 5,
    "identical search arr": [
        (
            "search_hotels",
            {"city": "Rome", "nights": 2},
            J([{"hotel": "A", "price": 100}, {"hotel": "B", "price": 120}]),
        )
    ]
    * 6,
    "identical status shipped": [("get_order_status", {"order": 1}, J({"status": "shipped"}))] * 5,
    "identical check": [("check_availability", {"room": 1}, J({"available": True}))] * 5,
    "identical list files": [("list_files", {"dir": "/"}, "a.txt\nb.txt")] * 5,
    "identical send": [("send_email", {"to": "x", "body": "hi"}, "Email sent")] * 5,
    "identical 404": [("http_get", {"url": "http://x/y"}, "404 Not Found")] * 5,
    "identical perm": [("bash", {"command": "cat /srv/x"}, "cat: /srv/x: Permission denied")] * 5,
    "identical exc": [
        (
            "python",
            {"code": "import foo"},
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'foo'",
        )
    ]
    * 5,
    "identical bash": [("bash", {"command": "ls"}, "a\nb")] * 5,
    "identical test no edit": [("run_tests", {}, "2 failed")] * 5,
    "identical invalid": [("create_user", {"name": ""}, "ValidationError: name must not be empty")] * 5,
    "identical think": [("think", {"thought": "I should look"}, "ok")] * 6,
    "identical weather": [
        ("get_weather", {"city": "Rome"}, J({"temp": 20, "updated_at": f"2026-01-01T10:00:0{i}Z"})) for i in range(6)
    ],
    "alternating files": [("read_file", {"p": "a"}, "A"), ("read_file", {"p": "b"}, "B")] * 4,
    "alternating edit": [("edit", {"p": "a", "t": "x"}, "ok"), ("edit", {"p": "a", "t": "y"}, "ok")] * 4,
    "alternating error": [("search", {"q": "x"}, "none"), ("open", {"id": 0}, "Error: no such item")] * 4,
    "alternating run": [("bash", {"command": "npm run build"}, "error TS2304"), ("read_file", {"path": "a.ts"}, "foo")]
    * 4,
    "period 4 mix": [
        ("search", {"q": "x"}, "1 hit"),
        ("open", {"id": 1}, "page"),
        ("think", {"t": "hm"}, ""),
        ("back", {}, "ok"),
    ]
    * 4,
    "period 5 uids": [
        c
        for k in range(4)
        for c in [(f"s{i}", {"q": i}, J({"r": i, "request_id": f"r-{k}{i}abc{k * 7919}"})) for i in range(5)]
    ],
    "interleaved 1": [
        c
        for i in range(5)
        for c in (("get_order", {"id": 1}, J({"id": 1, "total": 5})), ("get_product", {"id": i}, J({"p": i})))
    ],
    "interleaved bash": [
        c
        for i in range(5)
        for c in (
            ("bash", {"command": "cat config.yml"}, "a: 1"),
            ("bash", {"command": f"grep -r foo{i} ."}, f"hit {i}"),
        )
    ],
    "interleaved same tool": [
        c
        for i in range(5)
        for c in (("search", {"q": "alpha"}, J(["a", "b"])), ("search", {"q": f"beta{i}"}, J([f"c{i}"])))
    ],
    "interleaved fail edit": [
        c
        for i in range(5)
        for c in (("run_tests", {}, "2 failed"), ("edit_file", {"p": "a", "s": f"{i}"}, "Error: string not found"))
    ],
    "interleaved list": [
        c
        for i in range(5)
        for c in (("list_directory", {"path": "."}, "a b c"), ("read_file", {"path": f"f{i}"}, f"t{i}"))
    ],
    "date": [("bash", {"command": "date"}, f"Mon Mar  2 10:1{i}:05 CET 2026") for i in range(6)],
    "get_time": [("get_current_time", {}, f"2026-03-02T10:1{i}:05") for i in range(6)],
    "uptime": [
        ("bash", {"command": "uptime"}, f" 10:1{i}:05 up 3 days,  2 users,  load average: 0.00, 0.01, 0.05")
        for i in range(6)
    ],
    "elapsed": [("query", {"sql": "select 1"}, f"1 row (0.0{i + 1} sec)") for i in range(6)],
    "epochms": [("api", {"p": "/x"}, J({"ok": False, "t": 1767225600000 + i * 1000, "msg": "bad"})) for i in range(6)],
    "traceid": [("api", {"p": "/x"}, J({"error": "bad input", "trace": f"{i:032x}"})) for i in range(100000, 100006)],
    "etag hdr": [
        ("http", {"u": "x"}, f"200 OK\nDate: Mon, 02 Mar 2026 10:0{i}:00 GMT\nX-Request-Id: {i}f3a-{i}\n\nbody text")
        for i in range(6)
    ],
    "logline": [("get_logs", {"svc": "a"}, f"10:0{i}:01.123 ERROR db refused (conn 8f3{i}aa12)") for i in range(6)],
    "reworded 1": [
        ("search_documents", {"query": q}, J([{"id": 7, "title": "Guide"}, {"id": 9, "title": "FAQ"}]))
        for q in (
            "refund policy",
            "policy for refunds",
            "refund rules policy",
            "what is the refund policy",
            "refund policy details",
            "our refund policy",
        )
    ],
    "reworded 2": [
        ("web_search", {"query": q, "n": 5}, "No relevant results found.")
        for q in (
            "acme corp ceo 2026",
            "ceo of acme corp",
            "acme corp chief executive",
            "acme corp current ceo",
            "who is acme corp ceo",
            "acme corp ceo name",
        )
    ],
    "reworded 3": [
        ("knowledge_base", {"question": q}, "See article KB-1: resetting your device")
        for q in (
            "how do I reset",
            "reset device",
            "device reset steps",
            "resetting device how",
            "how reset device",
            "factory reset device",
        )
    ],
    "reworded sql": [
        ("run_sql", {"query": q}, "[(1,'a'),(2,'b')]")
        for q in (
            "select * from t",
            "select id,name from t",
            "SELECT t.* FROM t",
            "select * from t limit 100",
            "select id, name from t order by id",
            "select * from t where 1=1",
        )
    ],
    "switching 1": [
        (n, {"query": "who owns domain foo.example"}, r)
        for n, r in (
            ("web_search", "No results."),
            ("news_search", "No articles found."),
            ("wiki_search", "Page not found"),
            ("web_search", "No results."),
            ("news_search", "No articles found."),
            ("wiki_search", "Page not found"),
        )
    ],
    "switching 2": [
        (n, {"url": "http://foo.example/a"}, "Error: blocked by robots")
        for n in ("fetch", "browse", "curl", "open_page", "scrape", "fetch", "curl", "browse")
    ],
    "switching 3": [
        (n, {"file": "report.pdf"}, "Error: file not found: report.pdf")
        for n in ("read_pdf", "open_file", "extract_text", "read_pdf", "parse_document", "open_file")
    ],
    "switching 4": [
        (n, a, "Error: invalid API key")
        for n, a in (
            ("google_search", {"q": "cats"}),
            ("bing_search", {"q": "cats"}),
            ("ddg", {"query": "cats"}),
            ("google_search", {"q": "cats pictures"}),
            ("bing_search", {"q": "cats photo"}),
            ("ddg", {"query": "cats"}),
            ("google_search", {"q": "cats"}),
        )
    ],
}
