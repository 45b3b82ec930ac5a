package mcpserver

import (
	"net"
	"strconv"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

// Config is how the server is reached.
type Config struct {
	HTTP  bool
	Host  string // a name or an address without brackets
	Port  int    // 0: any free one
	Token string // bearer token, "" for none
	Stdio StdioMode
}

// StdioMode is MCP_ENABLE_STDIO.
type StdioMode string

// The values of MCP_ENABLE_STDIO.
const (
	StdioAuto StdioMode = "auto" // on if standard input is a client's
	StdioOn   StdioMode = "on"
	StdioOff  StdioMode = "off"
)

// ConfigFrom takes what concerns this package from settings that were
// resolved with ResolveHTTP.
func ConfigFrom(s *config.Settings) Config {
	return Config{HTTP: s.EnableHTTP, Host: s.HTTPHost, Port: s.HTTPPort, Token: s.HTTPToken, Stdio: StdioMode(s.EnableStdio)}
}

func (c Config) address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

func (c Config) loopback() bool { return config.IsLoopbackHost(c.Host) }

// check repeats what ResolveHTTP has refused already: nothing may serve other
// machines without a token, whatever made this Config.
func (c Config) check() error {
	if c.HTTP && !c.loopback() && c.Token == "" {
		return fault.New(fault.InvalidArgument, "host %q is not loopback and there is no token", c.Host)
	}
	return nil
}
