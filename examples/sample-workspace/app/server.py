"""The HTTP side.

POST /links {"url": …}  201 {"code", "url"}
GET  /CODE              302 to the URL, and one hit more
GET  /links/CODE        200 {"code", "url", "hits"}
GET  /healthz           200, or 503 while MySQL or Redis does not answer
"""

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LARGEST_BODY = 8192


def is_link(url):
    if not isinstance(url, str) or not 0 < len(url) <= 2000 or not url.isascii() or re.search(r"[\s\x00-\x1f]", url):
        return False
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def make_server(address, store):
    class Handler(BaseHTTPRequestHandler):
        def reply(self, status, body, **headers):
            data = json.dumps(body).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self):
            if self.path != "/links":
                return self.reply(404, {"error": "no such page"})
            try:
                body = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), LARGEST_BODY)))
            except ValueError:
                return self.reply(400, {"error": "the body is no JSON"})
            url = body.get("url") if isinstance(body, dict) else None
            if not is_link(url):
                return self.reply(400, {"error": "url must be an http or https URL"})
            return self.reply(201, {"code": store.add(url), "url": url})

        def do_GET(self):
            if self.path == "/healthz":
                try:
                    store.check()
                except Exception as error:  # whatever it is, the service cannot work
                    return self.reply(503, {"error": type(error).__name__})
                return self.reply(200, {"mysql": "ok", "redis": "ok"})
            found = re.fullmatch(r"/(links/)?([a-z2-7]{8})", self.path)
            url = store.find(found[2]) if found else None
            if url is None:
                return self.reply(404, {"error": "no such link"})
            if found[1]:
                return self.reply(200, {"code": found[2], "url": url, "hits": store.hits(found[2])})
            store.count(found[2])
            return self.reply(302, {"url": url}, Location=url)

    return ThreadingHTTPServer(address, Handler)
