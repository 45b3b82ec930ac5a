package services

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// mostOfAnAnswer bounds one message of a server: the guest may say what it
// likes, and the host keeps it in memory.
const mostOfAnAnswer = 64 << 10

// askPostgres sends one statement over c, signed in as s says, and returns the
// first value of its first row, "" if it has none. c is closed.
func askPostgres(ctx context.Context, c net.Conn, s Service, statement string) (string, error) {
	// The library would go on reading, to be polite, as long as the server sends.
	defer c.Close()
	// The library insists on reading PG* variables of this process first. None
	// of them is about the guest's server: all that they may set is set here.
	cfg, err := pgconn.ParseConfig("sslmode=disable")
	if err != nil {
		return "", err
	}
	cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database = s.Container, uint16(s.Port), s.User, s.Password, s.Database
	cfg.TLSConfig, cfg.Fallbacks, cfg.SSLNegotiation, cfg.ConnectTimeout = nil, nil, "", 0
	cfg.RuntimeParams = map[string]string{"application_name": "sandboxforge"}
	cfg.ValidateConnect, cfg.AfterConnect, cfg.RequireAuth, cfg.ChannelBinding = nil, nil, "", "disable"
	cfg.KerberosSrvName, cfg.KerberosSpn, cfg.MinProtocolVersion, cfg.MaxProtocolVersion = "", "", "3.0", "3.0"
	cfg.MaxProtocolMessageBodyLen = mostOfAnAnswer
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{s.Container}, nil }
	given := false
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		if given {
			return nil, errors.New("there is one connection only")
		}
		given = true
		return c, nil
	}
	p, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", err
	}
	results, err := p.Exec(ctx, statement).ReadAll()
	if cerr := p.Close(ctx); err == nil {
		err = cerr
	}
	if err != nil || len(results) == 0 || len(results[0].Rows) == 0 || len(results[0].Rows[0]) == 0 {
		return "", err
	}
	return strings.TrimSpace(string(results[0].Rows[0][0])), nil
}
