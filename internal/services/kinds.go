package services

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"sandboxforge/internal/config"
)

// kind is what the package knows of one server. A new service is one entry of
// kinds and one table of the configuration.
type kind struct {
	name   string
	port   int
	config func(config.InfraConfig) config.ServiceConfig
	user   string // the account that is used unless the container says otherwise
	// What the image reads from its environment; "" where it has no such thing.
	userVar, passwordVar, databaseVar string
	// probe asks the final server a question whose answer is answer. Images
	// start a temporary server while they initialise, which listens on no
	// network: hence over TCP.
	probe  func(Service) Command
	answer string
	// ask asks the same over a connection to its port, which it closes: a slow
	// guest takes seconds to start a client in a container. An error says that
	// this was not possible, or what else the server answered.
	ask func(context.Context, net.Conn, Service) error
	// rotate gives the running server the password in $SANDBOXFORGE_NEW; nil
	// where there is none.
	rotate func(Service) Command
	// tell gives it the password over a connection, which it closes.
	tell       func(ctx context.Context, c net.Conn, s Service, password string) error
	connection func(Service) []Variable
}

// mysqlClient is a shell's words for the client that the image has. The
// password is in MYSQL_PWD, which both read.
const mysqlClient = `c=mysql; command -v mysql >/dev/null 2>&1 || c=mariadb; "$c" --protocol=TCP --host=127.0.0.1 --port=3306 "--user=$SANDBOXFORGE_USER" --batch --skip-column-names `

// mysqlRotation is a format, for fmt and for printf alike, of the statement that
// gives the account its password, which is taken twice.
const mysqlRotation = `ALTER USER IF EXISTS 'root'@'localhost' IDENTIFIED BY '%s', 'root'@'%%' IDENTIFIED BY '%s'`

// kinds in the order in which services are started and shown.
var kinds = []*kind{
	{
		name: "mysql", port: 3306, user: "root",
		config:      func(c config.InfraConfig) config.ServiceConfig { return c.MySQL },
		passwordVar: "MYSQL_ROOT_PASSWORD", databaseVar: "MYSQL_DATABASE",
		probe: func(s Service) Command {
			return Command{
				Argv: []string{"sh", "-c", mysqlClient + `"--database=$SANDBOXFORGE_DATABASE" --execute='SELECT 1'`},
				Env:  []string{"MYSQL_PWD=" + s.Password, "SANDBOXFORGE_USER=" + s.User, "SANDBOXFORGE_DATABASE=" + s.Database},
			}
		},
		answer: "1",
		ask: func(ctx context.Context, c net.Conn, s Service) error {
			return tellMySQL(ctx, c, s, "DO 1")
		},
		tell: func(ctx context.Context, c net.Conn, s Service, password string) error {
			s.Database = ""
			return tellMySQL(ctx, c, s, fmt.Sprintf(mysqlRotation, password, password))
		},
		rotate: func(s Service) Command {
			return Command{
				// The password has letters and digits only (see Rotate).
				Argv: []string{"sh", "-c", `printf "` + mysqlRotation + `;\n" "$SANDBOXFORGE_NEW" "$SANDBOXFORGE_NEW" | { ` + mysqlClient + `; }`},
				Env:  []string{"MYSQL_PWD=" + s.Password, "SANDBOXFORGE_USER=" + s.User},
			}
		},
		connection: func(s Service) []Variable {
			port := strconv.Itoa(s.Port)
			return []Variable{
				{"DB_HOST", s.Container}, {"DB_PORT", port}, {"DB_NAME", s.Database}, {"DB_USER", s.User}, {"DB_PASSWORD", s.Password},
				{"MYSQL_HOST", s.Container}, {"MYSQL_PORT", port}, {"MYSQL_DATABASE", s.Database}, {"MYSQL_USER", s.User}, {"MYSQL_PASSWORD", s.Password},
			}
		},
	},
	{
		name: "redis", port: 6379,
		config: func(c config.InfraConfig) config.ServiceConfig { return c.Redis },
		probe: func(Service) Command {
			return Command{Argv: []string{"redis-cli", "-h", "127.0.0.1", "-p", "6379", "ping"}}
		},
		answer: "PONG",
		ask:    askRedis,
		connection: func(s Service) []Variable {
			port := strconv.Itoa(s.Port)
			return []Variable{{"REDIS_HOST", s.Container}, {"REDIS_PORT", port}, {"REDIS_URL", "redis://" + s.Container + ":" + port + "/0"}}
		},
	},
	{
		name: "postgres", port: 5432, user: "postgres",
		config:  func(c config.InfraConfig) config.ServiceConfig { return c.Postgres },
		userVar: "POSTGRES_USER", passwordVar: "POSTGRES_PASSWORD", databaseVar: "POSTGRES_DB",
		probe: func(s Service) Command {
			return Command{
				// By its host name: images trust whoever comes from 127.0.0.1.
				Argv: []string{"psql", "--host=" + s.Container, "--port=5432", "--username=" + s.User, "--dbname=" + s.Database, "--no-psqlrc", "--no-password", "-tA", "-c", "SELECT 1"},
				Env:  []string{"PGPASSWORD=" + s.Password, "PGCONNECT_TIMEOUT=20"},
			}
		},
		answer: "1",
		ask: func(ctx context.Context, c net.Conn, s Service) error {
			answer, err := askPostgres(ctx, c, s, "SELECT 1")
			if err == nil && answer != "1" {
				err = fmt.Errorf("the server answered %q", oneLine(answer))
			}
			return err
		},
		tell: func(ctx context.Context, c net.Conn, s Service, password string) error {
			_, err := askPostgres(ctx, c, s, fmt.Sprintf("ALTER USER CURRENT_USER PASSWORD '%s'", password))
			return err
		},
		rotate: func(s Service) Command {
			return Command{
				Argv: []string{"sh", "-c", `printf "ALTER USER CURRENT_USER PASSWORD '%s';\n" "$SANDBOXFORGE_NEW" | psql --no-psqlrc --no-password --quiet --set=ON_ERROR_STOP=1`},
				Env:  []string{"PGPASSWORD=" + s.Password, "PGHOST=" + s.Container, "PGPORT=5432", "PGUSER=" + s.User, "PGDATABASE=" + s.Database},
			}
		},
		connection: func(s Service) []Variable {
			return []Variable{{"PGHOST", s.Container}, {"PGPORT", strconv.Itoa(s.Port)}, {"PGDATABASE", s.Database}, {"PGUSER", s.User}, {"PGPASSWORD", s.Password}}
		},
	},
}

// askRedis sends PING in Redis' own protocol (RESP). An error quotes what else
// than PONG it answers.
func askRedis(ctx context.Context, c net.Conn, _ Service) error {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(c, 512)).ReadString('\n')
	if err != nil {
		return err
	}
	if line = strings.TrimRight(line, "\r\n"); line != "+PONG" {
		return fmt.Errorf("the server answered %q", oneLine(line))
	}
	return nil
}

// index is a kind's place in the table, from which its address follows.
func (k *kind) index() int {
	for i := range kinds {
		if kinds[i] == k {
			return i
		}
	}
	return -1
}
