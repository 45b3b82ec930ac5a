package lima

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

func TestParseList(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"\n\n":                                 "",
		`{"name":"a"}` + "\n" + `{"name":"b"}`: "a b",
		"time=x level=warning msg=\"{\"\n" + `{"name":"a"}` + "\r\nnoise\n" + `{"name":"b"}` + "\n": "a b",
		`[{"name":"a"},{"name":"b"}]`:                      "a b",
		"[\n {\n \"name\": \"a\"\n }\n]\n":                 "a",
		`{"instances":[{"name":"a"}]}`:                     "a",
		`{"instances":[]}`:                                 "",
		`[]`:                                               "",
		"[hostagent] noise\n" + `{"name":"a"}`:             "a",
		`{"name":"a"}{"name":"b"}`:                         "a b",
		`{"name":"a","unknown":{"x":[1]},"status":"Soon"}`: "a",
	} {
		all, err := parseList([]byte(in))
		var names []string
		for _, l := range all {
			names = append(names, l.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`{"name":"a"`, `[{"name":"a"}`, `{"status":"Running"}`, `{"name":7}`, `{"name":"a","driverPID":"x"}`, `{"name":"a"}` + "\n" + `{"na`} {
		if all, err := parseList([]byte(in)); err == nil {
			t.Errorf("%q: %+v", in, all)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add([]byte(`{"name":"a","config":{"mounts":[{}]}}` + "\nnoise\n[]"))
	f.Add([]byte(`{"instances":[{"name":"a"}]}`))
	f.Add([]byte(`[{"name":"a"},null]`))
	f.Fuzz(func(t *testing.T, in []byte) {
		all, err := parseList(in)
		if err != nil {
			return
		}
		for _, l := range all {
			if l.Name == "" {
				t.Errorf("an instance without a name in %q", in)
			}
			l.running()
			l.Config.leaks()
		}
	})
}

// TestFailures: what limactl was seen to say, and what it means.
func TestFailures(t *testing.T) {
	for said, want := range map[string]struct {
		kind error
		code fault.Code
	}{
		"instance `t1` already exists": {backend.ErrExists, fault.BackendCommandFailed},
		"instance `x` does not exist, run `limactl create x` to create a new instance": {backend.ErrNotFound, fault.InstanceNotFound},
		"open /h/x/lima.yaml: no such file or directory":                               {backend.ErrNotFound, fault.InstanceNotFound},
		"instance `x` not found": {backend.ErrNotFound, fault.InstanceNotFound},
		"instance `t1` is stopped, run `limactl start t1` to start the instance":   {backend.ErrNotRunning, fault.BackendCommandFailed},
		"expected status `Running`, got `Stopped` (maybe use `limactl stop -f`?)":  {backend.ErrNotRunning, fault.BackendCommandFailed},
		"failed to delete instance `t1`: expected status `Stopped`, got `Running`": {backend.ErrRunning, fault.BackendCommandFailed},
		"write /h/t1/disk: no space left on device":                                {nil, fault.InsufficientDisk},
		"something that nobody has seen":                                           {nil, fault.BackendCommandFailed},
	} {
		e := &commandError{args: []string{"stop"}, code: 1, stderr: `time="2026-08-01T10:00:00Z" level=info msg="before"` + "\n" + `time="2026-08-01T10:00:00Z" level=fatal msg="` + said + `"` + "\n"}
		err := explain(e, "it failed")
		if !fault.Is(err, want.code) || want.kind != nil && !errors.Is(err, want.kind) {
			t.Errorf("%s: %v", said, err)
		}
		if cause := fault.From(err).Cause; !strings.Contains(cause, said) || len(fault.From(err).DetailMap()["next_steps"].([]string)) == 0 {
			t.Errorf("%s: cause %q", said, cause)
		}
	}
	if err := explain(&commandError{args: []string{"list"}, code: 1, stderr: "limactl: must not run as the root user\n"}, "x"); !fault.Is(err, fault.BackendUnavailable) {
		t.Errorf("%v", err)
	}
	if err := explain(errSlow, "it hangs"); !fault.Is(err, fault.BackendCommandFailed) || len(fault.From(err).NextSteps) == 0 {
		t.Errorf("%v", err)
	}
}

func FuzzSaid(f *testing.F) {
	f.Add(`time="x" level=fatal msg="instance \"a\" \n b"`)
	f.Add("level=fatal msg=")
	f.Fuzz(func(t *testing.T, stderr string) {
		e := &commandError{args: []string{"x"}, stderr: stderr}
		if s := e.Error(); !utf8.ValidString(s) || len(s) > 600 || strings.ContainsAny(s, "\n\x1b\x00") {
			t.Errorf("%q", s)
		}
	})
}

func TestParseAccess(t *testing.T) {
	const seen = `# This SSH config file can be passed to 'ssh -F'.
Host lima-vm-1
  IdentityFile "/h/with space/_config/user"
  StrictHostKeyChecking no
  Ciphers "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
  User lima
  ControlPath "/h/vm-1/ssh.sock"
  Hostname 127.0.0.1
  Port 43211
`
	a, err := parseAccess(seen)
	if err != nil || a != (access{"127.0.0.1:43211", "lima", "/h/with space/_config/user"}) {
		t.Errorf("%+v, %v", a, err)
	}
	for what, change := range map[string][2]string{
		"another host": {"Hostname 127.0.0.1", "Hostname 10.0.0.1"}, "a name": {"Hostname 127.0.0.1", "Hostname evil.example"},
		"no port": {"Port 43211", "Port x"}, "a large port": {"Port 43211", "Port 99999"},
		"no user": {"User lima", "User"}, "an option as user": {"User lima", "User -oProxyCommand=x"},
		"no key": {"IdentityFile", "Other"},
	} {
		if a, err := parseAccess(strings.Replace(seen, change[0], change[1], 1)); err == nil {
			t.Errorf("%s: %+v", what, a)
		}
	}
}

func FuzzParseAccess(f *testing.F) {
	f.Add("Host x\n  Hostname 127.0.0.1\n  Port 22\n  User u\n  IdentityFile k\n")
	f.Fuzz(func(t *testing.T, in string) {
		a, err := parseAccess(in)
		if err == nil && (a.user == "" || strings.HasPrefix(a.user, "-") || !strings.HasPrefix(a.address, "127.") && !strings.HasPrefix(a.address, "localhost:") && !strings.HasPrefix(a.address, "[::")) {
			t.Errorf("%q: %+v", in, a)
		}
	})
}

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]version{
		"limactl version 2.1.0\n":         {"2.1.0", true, 2, 1},
		"limactl version 1.2.2-3-gabc":    {"1.2.2-3-gabc", true, 1, 2},
		"limactl version v2.0.0-beta.0.m": {"v2.0.0-beta.0.m", true, 2, 0},
		"limactl version HEAD-183a60d":    {"HEAD-183a60d", false, 0, 0},
		"limactl version <unknown>":       {"<unknown>", false, 0, 0},
		"":                                {"unknown", false, 0, 0},
	} {
		if got := parseVersion(in); got != want {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
}

// TestRecordsAreBounded: a damaged record is an error, and not the end of the
// server.
func TestRecordsAreBounded(t *testing.T) {
	path := t.TempDir() + "/vm.json"
	if err := os.WriteFile(path, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var r struct{}
	if err := readJSON(path, &r); err == nil {
		t.Error("a record of zeros was read")
	}
}
