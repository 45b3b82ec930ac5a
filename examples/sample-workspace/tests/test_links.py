"""Tests of the running service, with the real MySQL and Redis behind it.

They run in the app's container: python3 -m unittest -v
"""

import http.client
import json
import os
import time
import unittest
import uuid

from app.server import is_link
from app.store import Store, code_of

ADDRESS = os.environ.get("APP_ADDRESS", "localhost:8080")


def ask(method, path, body=None):
    connection = http.client.HTTPConnection(ADDRESS, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


def setUpModule():
    """Waits until the service and what it needs answer."""
    for _ in range(240):
        try:
            if ask("GET", "/healthz")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError("the service does not answer on " + ADDRESS)


class Links(unittest.TestCase):
    def setUp(self):
        self.url = "https://example.com/" + uuid.uuid4().hex
        status, body, _ = ask("POST", "/links", {"url": self.url})
        self.assertEqual((status, body), (201, {"code": code_of(self.url), "url": self.url}))
        self.code = body["code"]

    def test_follow_counts_hits(self):
        for _ in range(3):
            status, _, headers = ask("GET", "/" + self.code)
            self.assertEqual((status, headers["Location"]), (302, self.url))
        _, body, _ = ask("GET", "/links/" + self.code)
        self.assertEqual(body, {"code": self.code, "url": self.url, "hits": 3})

    def test_posted_twice_is_one_link(self):
        status, body, _ = ask("POST", "/links", {"url": self.url})
        self.assertEqual((status, body["code"]), (201, self.code))
        store = Store.from_environment(os.environ)
        self.assertEqual(store.query("SELECT COUNT(*) FROM links WHERE url = %s", self.url), ((1,),))

    def test_mysql_keeps_what_redis_forgets(self):
        ask("GET", "/" + self.code)
        store = Store.from_environment(os.environ)
        self.assertEqual(store.redis.get("url:" + self.code), self.url)
        store.redis.delete("url:" + self.code)
        self.assertEqual(ask("GET", "/" + self.code)[0], 302)


class Refusals(unittest.TestCase):
    def test_unknown_link(self):
        for path in ("/aaaaaaaa", "/links/aaaaaaaa", "/", "/links", "/AAAAAAAA"):
            self.assertEqual(ask("GET", path)[0], 404, path)

    def test_bad_bodies(self):
        for body in ({}, [], "x", {"url": 1}, {"url": "ftp://example.com/"}, {"url": "https://"}):
            self.assertEqual(ask("POST", "/links", body)[0], 400, body)

    def test_what_is_a_link(self):
        self.assertTrue(is_link("http://example.com:8080/a?b=c#d"))
        for url in (None, "", "example.com", "javascript:alert(1)", "https://a b", "https://a/\r\nX: y", "https://a/" + "x" * 2000):
            self.assertFalse(is_link(url), url)


if __name__ == "__main__":
    unittest.main()
