#!/bin/sh
# Stands in for the entrypoint of the redis image, in tests.
exec redis-server --bind 0.0.0.0 --port 6379 --protected-mode no --dir /data "$@"
