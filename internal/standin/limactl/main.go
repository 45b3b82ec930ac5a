//go:build linux

package limactl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Version is what --version says.
const Version = "2.1.0-standin"

// Main is the program; it returns the exit code.
func Main(args []string) int {
	if os.Geteuid() == 0 && os.Getenv("LIMACTL_STANDIN_AS_ROOT") == "" {
		fmt.Fprint(os.Stderr, "limactl: must not run as the root user\n")
		return 1
	}
	if err := run(args); err != nil {
		logLine("fatal", err.Error())
		return 1
	}
	return 0
}

func logLine(level, msg string) {
	fmt.Fprintf(os.Stderr, "time=%q level=%s msg=%q\n", time.Now().Format(time.RFC3339), level, msg)
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	if args[0] == "--version" {
		v := os.Getenv("LIMACTL_STANDIN_VERSION")
		if v == "" {
			v = Version
		}
		fmt.Println("limactl version " + v)
		return nil
	}
	c, err := parse(args[0], args[1:])
	if err != nil {
		return err
	}
	if done, err := fault(c.name); done || err != nil {
		return err
	}
	switch c.name {
	case "create":
		return create(c)
	case "start":
		return start(c)
	case "stop":
		return stop(c)
	case "delete":
		return remove(c)
	case "clone":
		return clone(c)
	case "list":
		return list(c)
	case "edit":
		return edit(c)
	case "shell", "copy":
		return shell(c)
	case "snapshot":
		return snapshot(c)
	case "hostagent":
		return hostAgent(c)
	case "driver":
		return driver(c)
	}
	return fmt.Errorf("unknown command %q for \"limactl\"", c.name)
}

// command is a parsed command line.
type command struct {
	name  string
	flags map[string][]string
	args  []string
}

// switches are the flags without a value, by command; values those with one.
var (
	switches = map[string][]string{
		"create": {"tty", "plain", "mount-none"}, "start": {"tty", "foreground"}, "stop": {"tty", "force"},
		"delete": {"tty", "force"}, "clone": {"tty", "mount-none", "start"}, "edit": {"tty", "mount-none"}, "list": {"tty", "json"},
		"shell": {"tty", "reconnect"}, "copy": {"tty"}, "snapshot": {"tty"}, "hostagent": {}, "driver": {},
	}
	values = map[string][]string{
		"create": {"name", "cpus", "memory", "disk", "arch", "vm-type", "set", "containerd", "port-forward", "mount"},
		"start":  {"timeout", "name"}, "clone": {"cpus", "memory", "disk", "set", "mount", "vm-type"}, "edit": {"cpus", "memory", "disk", "set", "mount"},
		"list": {"format"}, "shell": {"workdir"}, "snapshot": {"tag"},
	}
)

func parse(name string, rest []string) (command, error) {
	c := command{name: name, flags: map[string][]string{}}
	if name == "ls" {
		c.name = "list"
	}
	if _, ok := switches[c.name]; !ok {
		return c, fmt.Errorf("unknown command %q for \"limactl\"", name)
	}
	for len(rest) > 0 {
		a := rest[0]
		rest = rest[1:]
		switch {
		case a == "--":
			c.args = append(c.args, rest...)
			return c, nil
		case a == "-f" && c.name != "list":
			c.flags["force"] = []string{"true"}
		case strings.HasPrefix(a, "--"):
			key, value, given := strings.Cut(a[2:], "=")
			switch {
			case slices.Contains(switches[c.name], key):
				if !given {
					value = "true"
				}
			case slices.Contains(values[c.name], key):
				if !given {
					if len(rest) == 0 {
						return c, fmt.Errorf("flag needs an argument: --%s", key)
					}
					value, rest = rest[0], rest[1:]
				}
			default:
				return c, fmt.Errorf("unknown flag: --%s", key)
			}
			c.flags[key] = append(c.flags[key], value)
		case strings.HasPrefix(a, "-"):
			return c, fmt.Errorf("unknown shorthand flag: %q in %s", a[1:2], a)
		default:
			c.args = append(c.args, a)
		}
	}
	return c, nil
}

func (c command) flag(key string) string {
	if v := c.flags[key]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

func (c command) is(key string) bool { return c.flag(key) == "true" }

// terminal: a real limactl would ask here, and wait for ever.
func (c command) terminal() error {
	if c.flag("tty") != "false" {
		return errors.New("the stand-in has no terminal: --tty=false is missing")
	}
	return nil
}

func home() string { return os.Getenv("LIMA_HOME") }

func dirOf(name string) string { return filepath.Join(home(), name) }

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$`)

const maxSocket = 107

func checkName(name string) error {
	if len(name) > 76 || !namePattern.MatchString(name) {
		return fmt.Errorf("identifier %q must match %s", name, namePattern)
	}
	if s := filepath.Join(dirOf(name), "ssh.sock.1234567890123456"); len(s) > maxSocket {
		return fmt.Errorf("instance name `%s` too long: `%s` must be less than UNIX_PATH_MAX=108 characters, but is %d", name, s, len(s))
	}
	return nil
}

// fault does what the file _faults asks for: a line is a command and a word.
//
//	hang     the command does not end
//	fail     it fails at once
//	late     create, clone: it fails when the directory is made
//	noise    list: warnings between the lines
//	array, wrapped, cut   list: another form, or half a line
func fault(cmd string) (done bool, err error) {
	switch faultOf(cmd) {
	case "hang":
		time.Sleep(time.Hour)
	case "fail":
		return true, errors.New("the stand-in was told to fail")
	}
	return false, nil
}

func faultOf(cmd string) string {
	b, err := os.ReadFile(filepath.Join(home(), "_faults"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == cmd {
			return f[1]
		}
	}
	return ""
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
