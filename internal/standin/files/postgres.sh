#!/bin/sh
# Stands in for the entrypoint of the postgres image, in tests: the same
# variables, the same pg_hba.conf, and while it initialises a temporary server
# without networking.
set -e
bin=/usr/lib/postgresql/17/bin
data=/var/lib/postgresql/data
user=${POSTGRES_USER:-postgres}
db=${POSTGRES_DB:-$user}
if [ ! -s "$data/PG_VERSION" ]; then
	if [ -z "$POSTGRES_PASSWORD" ]; then
		echo "Error: Database is uninitialized and superuser password is not specified." >&2
		exit 1
	fi
	printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/pw
	$bin/initdb --username="$user" --pwfile=/tmp/pw --locale=C --encoding=UTF8 --no-sync "$data"
	rm /tmp/pw
	printf '\nhost all all all scram-sha-256\n' >>"$data/pg_hba.conf"
	$bin/postgres -D "$data" -c listen_addresses= -c unix_socket_directories=/tmp &
	pid=$!
	until PGPASSWORD=$POSTGRES_PASSWORD $bin/psql -h /tmp -U "$user" -d postgres -tAc 'SELECT 1' >/dev/null 2>&1; do
		kill -0 $pid
		sleep 0.2
	done
	[ "$db" = postgres ] || PGPASSWORD=$POSTGRES_PASSWORD $bin/psql -h /tmp -U "$user" -d postgres -v ON_ERROR_STOP=1 -c "CREATE DATABASE \"$db\""
	kill -INT $pid
	wait $pid || true
	echo "PostgreSQL init process complete; ready for start up."
fi
# What a killed server left.
rm -f /tmp/.s.PGSQL.*
exec $bin/postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=16MB "$@"
