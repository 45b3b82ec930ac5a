#!/bin/sh
# Stands in for the entrypoint of the mysql image, in tests: the same variables,
# and while it initialises a temporary server without networking.
set -e
data=/var/lib/mysql
serve="mariadbd --no-defaults --datadir=$data --socket=/tmp/mysqld.sock --pid-file=/tmp/mysqld.pid --innodb-buffer-pool-size=16M --performance-schema=OFF --skip-name-resolve"
if [ ! -d "$data/mysql" ]; then
	if [ -z "$MYSQL_ROOT_PASSWORD" ]; then
		echo "[ERROR] [Entrypoint]: Database is uninitialized and password option is not specified" >&2
		exit 1
	fi
	echo "[Note] [Entrypoint]: Initializing database files"
	share=/usr/share/mariadb
	{
		echo "CREATE DATABASE IF NOT EXISTS mysql;"
		echo "USE mysql;"
		echo "SET @auth_root_socket=NULL;"
		cat $share/mariadb_system_tables.sql $share/mariadb_performance_tables.sql $share/mariadb_system_tables_data.sql
	} | $serve --bootstrap --skip-networking
	echo "[Note] [Entrypoint]: Starting temporary server"
	$serve --skip-networking &
	pid=$!
	until mariadb --no-defaults --socket=/tmp/mysqld.sock --user=root --execute="SELECT 1" >/dev/null 2>&1; do
		kill -0 $pid
		sleep 0.2
	done
	{
		echo "DELETE FROM mysql.global_priv WHERE User = '' OR User = 'root' AND Host <> 'localhost';"
		echo "FLUSH PRIVILEGES;"
		echo "CREATE USER 'root'@'%' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';"
		echo "GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;"
		[ -z "$MYSQL_DATABASE" ] || echo "CREATE DATABASE IF NOT EXISTS \`$MYSQL_DATABASE\`;"
		echo "ALTER USER 'root'@'localhost' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';"
		echo "SHUTDOWN;"
	} | mariadb --no-defaults --socket=/tmp/mysqld.sock --user=root
	wait $pid
	echo "[Note] [Entrypoint]: MySQL init process done. Ready for start up."
fi
exec $serve --bind-address=0.0.0.0 --port=3306 "$@"
