"""Where links are: in MySQL for good, in Redis what is asked for and how often."""

import base64
import hashlib
from contextlib import closing

import pymysql
import redis

TABLE = """
CREATE TABLE IF NOT EXISTS links (
    code CHAR(8) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    url VARCHAR(2000) NOT NULL
)
"""
CACHED_SECONDS = 3600


def code_of(url):
    """The same URL has the same code, so a link that is posted twice is one."""
    return base64.b32encode(hashlib.sha256(url.encode()).digest())[:8].decode().lower()


class Store:
    def __init__(self, mysql, redis_url):
        self.mysql = mysql
        self.redis = redis.Redis.from_url(redis_url, socket_timeout=10, decode_responses=True)
        self.ready = False

    @classmethod
    def from_environment(cls, env):
        """From the variables that prepare_workspace injects."""
        return cls(
            {
                "host": env["DB_HOST"],
                "port": int(env["DB_PORT"]),
                "user": env["DB_USER"],
                "password": env["DB_PASSWORD"],
                "database": env["DB_NAME"],
            },
            env["REDIS_URL"],
        )

    def query(self, sql, *values):
        with closing(pymysql.connect(**self.mysql, autocommit=True, connect_timeout=10)) as db, db.cursor() as cursor:
            if not self.ready:
                cursor.execute(TABLE)
                self.ready = True
            cursor.execute(sql, values)
            return cursor.fetchall()

    def check(self):
        """Raises unless both servers answer."""
        self.query("SELECT 1")
        self.redis.ping()

    def add(self, url):
        code = code_of(url)
        self.query("INSERT INTO links (code, url) VALUES (%s, %s) ON DUPLICATE KEY UPDATE url = url", code, url)
        return code

    def find(self, code):
        """The URL of a code, or None."""
        url = self.redis.get("url:" + code)
        if url is None:
            rows = self.query("SELECT url FROM links WHERE code = %s", code)
            if not rows:
                return None
            url = rows[0][0]
            self.redis.set("url:" + code, url, ex=CACHED_SECONDS)
        return url

    def count(self, code):
        self.redis.incr("hits:" + code)

    def hits(self, code):
        return int(self.redis.get("hits:" + code) or 0)
