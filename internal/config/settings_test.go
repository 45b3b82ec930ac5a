package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/fault"
)

func settings(env map[string]string, goos string) (*Settings, error) {
	return LoadSettings(func(k string) string { return env[k] }, goos)
}

func TestSettingsDefaults(t *testing.T) {
	got, err := settings(map[string]string{"HOME": "/home/u"}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	home := "/home/u/.local/state/sandboxforge"
	want := &Settings{
		Home: home, UserHome: "/home/u", ConfigHome: "/home/u/.config",
		HTTPHost: "127.0.0.1", HTTPPort: 8765, EnableHTTP: true, EnableStdio: "auto",
		LeaseDBPath: home + "/state/leases.db", MaxInstances: 3, DefaultTTL: 30 * time.Minute, MaxTTL: 2 * time.Hour,
		SweeperInterval: time.Minute, Backend: "auto", Accel: "auto", LogFormat: "text", SessionID: "local", ImageDir: home + "/images",
		Templates: true, PreparedTemplates: true, TemplateCap: 20 << 30, SnapshotCap: 40 << 30,
		HyperV: HyperVSettings{SwitchName: "Default Switch", StorageDir: home + "/state/hyperv", SSHUser: "ubuntu", SSHPort: 22, BootTimeout: 3 * time.Minute},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestHomePerPlatform(t *testing.T) {
	for _, c := range []struct {
		goos string
		env  map[string]string
		want string
	}{
		{"linux", map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/x"}, "/x/sandboxforge"},
		{"darwin", map[string]string{"HOME": "/Users/u"}, "/Users/u/Library/Application Support/sandboxforge"},
		{"windows", map[string]string{"USERPROFILE": "/u", "LOCALAPPDATA": "/u/l"}, "/u/l/sandboxforge"},
		{"windows", map[string]string{"USERPROFILE": "/u"}, "/u/AppData/Local/sandboxforge"},
		{"linux", map[string]string{"HOME": "/h", "SANDBOXFORGE_HOME": "~/sf/"}, "/h/sf"},
		{"linux", map[string]string{"SANDBOXFORGE_HOME": "/sf"}, "/sf"},
	} {
		got, err := settings(c.env, c.goos)
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		if got.Home != c.want {
			t.Errorf("%s %v: home %s, want %s", c.goos, c.env, got.Home, c.want)
		}
	}
}

func TestSettingsValues(t *testing.T) {
	got, err := settings(map[string]string{
		"HOME": "/h", "SANDBOXFORGE_HOME": "/sf", "MCP_HTTP_HOST": "[::1]", "MCP_HTTP_ALLOW_NON_LOOPBACK": "YES", "MCP_HTTP_TOKEN": " tok ",
		"MCP_HTTP_PORT": "9000", "MCP_ENABLE_HTTP": "Off", "MCP_ENABLE_STDIO": "on", "LEASE_DB_PATH": "db/x.db", "MAX_INSTANCES": "7",
		"DEFAULT_TTL_MINUTES": "5", "MAX_TTL_MINUTES": "6", "LIMA_SWEEPER_INTERVAL_SECONDS": "9", "SANDBOX_BACKEND": "QEMU", "SANDBOX_ACCEL": "tcg",
		"SANDBOX_WARM_POOL": "2", "SANDBOX_TEMPLATES": "Off", "SANDBOX_TEMPLATE_CAP_GIB": "3", "SANDBOX_SNAPSHOT_CAP_GIB": "7", "SANDBOX_WORKSPACE_ROOTS": "/a:rel::~/b", "SANDBOX_ALLOWED_ROOTS": ":", "SANDBOX_IMAGE_DIR": "/img",
		"SANDBOX_LOG_LEVEL": "debug", "SANDBOX_LOG_FORMAT": "json", "MCP_SESSION_ID": "ide-1", "HYPERV_BASE_VHDX": "base.vhdx", "HYPERV_SSH_PORT": "2222",
		"HYPERV_BOOT_TIMEOUT_SECONDS": "1", "HYPERV_SSH_KEY_PATH": "~/.ssh/id", "HYPERV_SWITCH_NAME": "sw", "HYPERV_STORAGE_DIR": "/hv", "HYPERV_SSH_USER": "me",
	}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	want := &Settings{
		Home: "/sf", UserHome: "/h", ConfigHome: "/h/.config", HTTPHost: "::1", HTTPAllowNonLoopback: true, HTTPToken: "tok", HTTPPort: 9000,
		EnableStdio: "on", LeaseDBPath: "/sf/db/x.db", MaxInstances: 7, DefaultTTL: 5 * time.Minute, MaxTTL: 6 * time.Minute, SweeperInterval: 9 * time.Second,
		Backend: "qemu", Accel: "tcg", WarmPool: 2, TemplateCap: 3 << 30, SnapshotCap: 7 << 30, WorkspaceRoots: []string{"/a", "/sf/rel", "/h/b"}, AllowedRoots: []string{}, ImageDir: "/img",
		LogLevel: slog.LevelDebug, LogFormat: "json", SessionID: "ide-1",
		HyperV:   HyperVSettings{SwitchName: "sw", BaseVHDX: "/sf/base.vhdx", StorageDir: "/hv", SSHUser: "me", SSHKeyPath: "/h/.ssh/id", SSHPort: 2222, BootTimeout: time.Second},
		Warnings: []string{"LIMA_SWEEPER_INTERVAL_SECONDS is deprecated: rename it to SANDBOX_SWEEPER_INTERVAL_SECONDS"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEveryBadVariableIsNamedAtOnce(t *testing.T) {
	bad := map[string]string{
		"SANDBOXFORGE_HOME": "relative/home", "XDG_CONFIG_HOME": "x", "MCP_HTTP_HOST": "a b", "MCP_HTTP_ALLOW_NON_LOOPBACK": "maybe", "MCP_HTTP_TOKEN": "to ken",
		"MCP_HTTP_TOKEN_FILE": "/t", "MCP_HTTP_PORT": "70000", "MCP_ENABLE_HTTP": "2", "MCP_ENABLE_STDIO": "perhaps", "MAX_INSTANCES": "0", "DEFAULT_TTL_MINUTES": "200",
		"SANDBOX_SWEEPER_INTERVAL_SECONDS": "-1", "SANDBOX_BACKEND": "xen", "SANDBOX_ACCEL": "fast", "SANDBOX_WARM_POOL": "1.5", "SANDBOX_TEMPLATES": "maybe", "SANDBOX_TEMPLATE_CAP_GIB": "0", "SANDBOX_SNAPSHOT_CAP_GIB": "-1", "SANDBOX_LOG_LEVEL": "loud",
		"SANDBOX_LOG_FORMAT": "xml", "MCP_SESSION_ID": "a\nb", "HYPERV_SSH_USER": "-oProxyCommand=x", "HYPERV_SSH_PORT": "0", "HYPERV_BOOT_TIMEOUT_SECONDS": "inf",
		"LEASE_DB_PATH": "a\x00b", "SANDBOX_WORKSPACE_ROOTS": "a\x00", "SANDBOX_ALLOWED_ROOTS": "\x00", "SANDBOX_IMAGE_DIR": "\x00", "HYPERV_BASE_VHDX": "\x00",
		"HYPERV_STORAGE_DIR": "\x00", "HYPERV_SSH_KEY_PATH": "\x00", "HYPERV_SWITCH_NAME": " ",
	}
	env := map[string]string{"HOME": "/h"}
	for k, v := range bad {
		env[k] = v
	}
	_, err := settings(env, "linux")
	if !fault.Is(err, fault.InvalidArgument) {
		t.Fatal(err)
	}
	problems := fault.From(err).Details["problems"].([]map[string]string)
	named := map[string]bool{}
	for _, p := range problems {
		named[p["variable"]] = true
		if p["allowed"] == "" {
			t.Errorf("%v does not say what is allowed", p)
		}
	}
	for k := range bad {
		if !named[k] {
			t.Errorf("%s=%q is accepted", k, bad[k])
		}
	}
	if strings.Contains(err.Error(), "to ken") {
		t.Error("the error shows the token")
	}
	for _, env := range []map[string]string{{}, {"HOME": "/h", "MAX_TTL_MINUTES": "10"}} {
		if _, err := settings(env, "linux"); err == nil {
			t.Errorf("%v is accepted", env)
		}
	}
}

func TestHTTPOffLoopbackNeedsOptInAndToken(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	os.WriteFile(token, []byte("secret\n"), 0o600)
	for name, c := range map[string]struct {
		env map[string]string
		ok  bool
	}{
		"loopback":            {map[string]string{}, true},
		"localhost":           {map[string]string{"MCP_HTTP_HOST": "LocalHost"}, true},
		"other loopback":      {map[string]string{"MCP_HTTP_HOST": "127.9.9.9"}, true},
		"bare":                {map[string]string{"MCP_HTTP_HOST": "0.0.0.0"}, false},
		"all v6":              {map[string]string{"MCP_HTTP_HOST": "::"}, false},
		"opt-in only":         {map[string]string{"MCP_HTTP_HOST": "0.0.0.0", "MCP_HTTP_ALLOW_NON_LOOPBACK": "1"}, false},
		"token only":          {map[string]string{"MCP_HTTP_HOST": "0.0.0.0", "MCP_HTTP_TOKEN": "x"}, false},
		"both":                {map[string]string{"MCP_HTTP_HOST": "0.0.0.0", "MCP_HTTP_ALLOW_NON_LOOPBACK": "1", "MCP_HTTP_TOKEN": "x"}, true},
		"token file":          {map[string]string{"MCP_HTTP_HOST": "0.0.0.0", "MCP_HTTP_ALLOW_NON_LOOPBACK": "1", "MCP_HTTP_TOKEN_FILE": token}, true},
		"missing token file":  {map[string]string{"MCP_HTTP_TOKEN_FILE": token + "x"}, false},
		"token file is a dir": {map[string]string{"MCP_HTTP_TOKEN_FILE": filepath.Dir(token)}, false},
		"http is off":         {map[string]string{"MCP_HTTP_HOST": "0.0.0.0", "MCP_ENABLE_HTTP": "0"}, true},
	} {
		c.env["HOME"] = "/h"
		s, err := settings(c.env, "linux")
		if err == nil {
			err = s.ResolveHTTP()
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRunDirIsShortAndOurs(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("unix sockets' limits are a unix matter")
	}
	dir, err := os.MkdirTemp("/tmp", "sfcfg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	short := &Settings{Home: filepath.Join(dir, "h")}
	got, err := short.RunDir()
	if err != nil || got != filepath.Join(dir, "h", "run") {
		t.Fatalf("%q %v", got, err)
	}
	if info, _ := os.Stat(got); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
	runtimeDir := filepath.Join(dir, "r")
	os.Mkdir(runtimeDir, 0o700)
	env := func(k string) string {
		if k == "XDG_RUNTIME_DIR" {
			return runtimeDir
		}
		return ""
	}
	long := &Settings{Home: filepath.Join(dir, strings.Repeat("x", 100))}
	got, err = long.runDir(env, os.Getuid())
	if err != nil || !strings.HasPrefix(got, runtimeDir+"/sandboxforge/") || len(got) > maxSocketDir {
		t.Fatalf("%q %v", got, err)
	}
	if again, _ := long.runDir(env, os.Getuid()); again != got {
		t.Errorf("the directory changes: %q %q", got, again)
	}
	// A name that somebody else took is not used.
	os.RemoveAll(filepath.Join(runtimeDir, "sandboxforge"))
	os.Symlink(dir, filepath.Join(runtimeDir, "sandboxforge"))
	if got, err = long.runDir(env, os.Getuid()); err == nil && strings.HasPrefix(got, runtimeDir) {
		t.Errorf("a symlink was used: %q", got)
	} else if err == nil {
		os.Remove(got)
	}
	if err := ownDir(runtimeDir, os.Getuid()+1); err == nil {
		t.Error("a directory of another user is accepted")
	}
}

func TestEnsureHome(t *testing.T) {
	s, err := settings(map[string]string{"HOME": "/h", "SANDBOXFORGE_HOME": filepath.Join(t.TempDir(), "sf")}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureHome(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.VMDir()); err != nil || info.Mode().Perm() != 0o700 && os.PathSeparator == '/' {
		t.Errorf("%v %v", info, err)
	}
	file := filepath.Join(t.TempDir(), "f")
	os.WriteFile(file, nil, 0o600)
	if err := (&Settings{Home: filepath.Join(file, "x")}).EnsureHome(); err == nil {
		t.Error("a home below a file is accepted")
	}
}

// TestAHomeOthersCanWrite: it is closed to them, or refused where it is not
// this user's.
func TestAHomeOthersCanWrite(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the access list of the user's profile does it")
	}
	for _, sub := range []string{"", "state", "vms"} {
		s, err := settings(map[string]string{"HOME": "/h", "SANDBOXFORGE_HOME": filepath.Join(t.TempDir(), "sf")}, "linux")
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(s.Home, sub)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := s.EnsureHome(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%q: %v, %v", sub, info.Mode(), err)
		}
	}
	uid := os.Geteuid()
	if err := keepOthersOut(t.TempDir(), uid+1); (err == nil) != (uid == 0) {
		t.Errorf("a directory of user %d, to another: %v", uid, err)
	}
	if err := keepOthersOut("/tmp", uid+1); err == nil {
		t.Error("a directory that all can write, and that is another's, is accepted")
	}
}
