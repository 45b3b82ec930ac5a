package lima

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// access is how Lima's ssh.config of an instance says that it is reached.
type access struct {
	address  string
	user     string
	identity string // file of the private key
}

var userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// parseAccess reads the keys that matter of an ssh.config with one Host. The
// guest's address is always on the host's loopback: whatever else it says is
// refused.
func parseAccess(text string) (access, error) {
	var a access
	host, port := "127.0.0.1", 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.IndexAny(line, " \t=")
		if i < 0 {
			continue
		}
		key, value := strings.ToLower(line[:i]), strings.TrimLeft(line[i:], " \t=")
		if v, err := strconv.Unquote(value); err == nil {
			value = v
		}
		switch key {
		case "hostname":
			host = value
		case "port":
			port, _ = strconv.Atoi(value)
		case "user":
			a.user = value
		case "identityfile":
			if a.identity == "" {
				a.identity = value
			}
		}
	}
	ip := net.ParseIP(host)
	switch {
	case host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return a, fmt.Errorf("the instance's ssh.config names the host %.60q, which is not the loopback", host)
	case port < 1 || port > 65535:
		return a, errors.New("the instance's ssh.config names no port")
	case !userName.MatchString(a.user):
		return a, fmt.Errorf("the instance's ssh.config names the user %.60q", a.user)
	case a.identity == "":
		return a, errors.New("the instance's ssh.config names no key")
	}
	a.address = net.JoinHostPort(host, strconv.Itoa(port))
	return a, nil
}

// readAccess reads an ssh.config and the key that it names.
func readAccess(path string) (access, ssh.Signer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return access{}, nil, err
	}
	a, err := parseAccess(string(b))
	if err != nil {
		return a, nil, err
	}
	pem, err := os.ReadFile(a.identity)
	if err != nil {
		return a, nil, err
	}
	key, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return a, nil, fmt.Errorf("the key %s: %w", a.identity, err)
	}
	return a, key, nil
}
