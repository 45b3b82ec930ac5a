package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// defaultPath is where commands are found unless the login shell says otherwise.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// user is one account of the guest.
type user struct {
	name     string
	uid, gid uint32
	groups   []uint32
	home     string
	shell    string
}

// self says whether the agent runs as this user.
func (u *user) self() bool { return int(u.uid) == os.Geteuid() && os.Geteuid() != 0 }

// users reads the guest's accounts and caches login environments. Files are
// read anew each time: they are small, and a command may have changed them.
type users struct {
	etc string
	def string

	mu   sync.Mutex
	envs map[string]*loginEnv
}

type loginEnv struct {
	stamp string
	done  chan struct{}
	env   []string
}

var errNoUser = errors.New("no such user in the guest")

// lookup finds a user by name or number; "" is the default user.
func (us *users) lookup(name string) (*user, error) {
	asked := name
	if name == "" {
		name = us.def
	}
	passwd, err := os.ReadFile(filepath.Join(us.etc, "passwd"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	uid, numErr := strconv.ParseUint(name, 10, 32)
	byNumber := func() *user {
		for line := range strings.Lines(string(passwd)) {
			f := strings.Split(strings.TrimRight(line, "\n"), ":")
			if len(f) < 7 {
				continue
			}
			u, err1 := strconv.ParseUint(f[2], 10, 32)
			g, err2 := strconv.ParseUint(f[3], 10, 32)
			if err1 != nil || err2 != nil {
				continue
			}
			if f[0] == name || numErr == nil && u == uid {
				return &user{name: f[0], uid: uint32(u), gid: uint32(g), home: f[5], shell: f[6]}
			}
		}
		return nil
	}
	u := byNumber()
	switch {
	case u != nil:
	case numErr == nil:
		u = &user{name: name, uid: uint32(uid), gid: uint32(uid), home: "/"}
	case asked == "":
		// A guest without the account: the agent's own user.
		me := strconv.Itoa(os.Geteuid())
		if name == me {
			return nil, errNoUser
		}
		u, err := us.lookup(me)
		if err == nil && u.uid == uint32(os.Geteuid()) && os.Geteuid() != 0 {
			u.gid = uint32(os.Getegid())
		}
		return u, err
	default:
		return nil, fmt.Errorf("%w: %q", errNoUser, name)
	}
	u.groups = us.groups(u)
	return u, nil
}

func (us *users) groups(u *user) []uint32 {
	out := []uint32{u.gid}
	b, err := os.ReadFile(filepath.Join(us.etc, "group"))
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), u.name) {
			continue
		}
		if g, err := strconv.ParseUint(f[2], 10, 32); err == nil && !slices.Contains(out, uint32(g)) {
			out = append(out, uint32(g))
		}
	}
	return out
}

// base is the environment that a login program sets up.
func (us *users) base(u *user) []string {
	shell := u.shell
	if shell == "" {
		shell = "/bin/sh"
	}
	env := map[string]string{
		"PATH": defaultPath, "HOME": u.home, "USER": u.name, "LOGNAME": u.name, "SHELL": shell, "LANG": "C.UTF-8",
	}
	// pam_env's file: lines of NAME=value, quotes around the value optional.
	if b, err := os.ReadFile(filepath.Join(us.etc, "environment")); err == nil {
		for line := range strings.Lines(string(b)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
			k, v, ok := strings.Cut(line, "=")
			if !ok || k == "" || strings.HasPrefix(k, "#") {
				continue
			}
			if len(v) >= 2 && (v[0] == '"' || v[0] == '\'') && v[len(v)-1] == v[0] {
				v = v[1 : len(v)-1]
			}
			env[k] = v
		}
	}
	return flatten(env)
}

func flatten(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// stamp changes when a file changes from which a login shell takes its
// environment.
func (us *users) stamp(u *user) string {
	paths := []string{
		filepath.Join(us.etc, "environment"), filepath.Join(us.etc, "profile"), filepath.Join(us.etc, "profile.d"),
		filepath.Join(us.etc, "passwd"), filepath.Join(u.home, ".profile"),
	}
	if entries, err := os.ReadDir(filepath.Join(us.etc, "profile.d")); err == nil {
		for _, e := range entries {
			paths = append(paths, filepath.Join(us.etc, "profile.d", e.Name()))
		}
	}
	var b strings.Builder
	for _, p := range paths {
		if st, err := os.Stat(p); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", p, st.Size(), st.ModTime().UnixNano())
		}
	}
	return b.String()
}

// environ returns the user's login environment. It is captured by one run of a
// login shell and kept until a file behind it changes; where that shell fails,
// the plain environment is returned.
func (us *users) environ(ctx context.Context, u *user) []string {
	key := fmt.Sprintf("%d:%s", u.uid, u.name)
	stamp := us.stamp(u)
	us.mu.Lock()
	e := us.envs[key]
	if e == nil || e.stamp != stamp {
		e = &loginEnv{stamp: stamp, done: make(chan struct{})}
		if us.envs == nil {
			us.envs = map[string]*loginEnv{}
		}
		us.envs[key] = e
		us.mu.Unlock()
		// On its own time limit: the caller that came first may leave.
		go func() {
			defer close(e.done)
			e.env = us.capture(u)
		}()
	} else {
		us.mu.Unlock()
	}
	select {
	case <-e.done:
		return slices.Clone(e.env)
	case <-ctx.Done():
		return us.base(u)
	}
}

// captureTimeout bounds a login shell, whose profile the guest's user wrote.
const captureTimeout = 20 * time.Second

func (us *users) capture(u *user) []string {
	base := us.base(u)
	ctx, cancel := context.WithTimeout(context.Background(), captureTimeout)
	defer cancel()
	const mark = "sandboxforge-environment"
	cmd := exec.CommandContext(ctx, "/bin/sh", "-lc", "printf '%s\\0' "+mark+"; env -0")
	cmd.Env = base
	cmd.Dir = u.home
	if st, err := os.Stat(u.home); err != nil || !st.IsDir() {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !u.self() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out limitedBuffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return base
	}
	// What the profile printed comes before the mark.
	_, after, ok := bytes.Cut(out.b, []byte(mark+"\x00"))
	if !ok {
		return base
	}
	var env []string
	for v := range bytes.SplitSeq(after, []byte{0}) {
		k, _, ok := strings.Cut(string(v), "=")
		if !ok || k == "" || k == "_" || k == "SHLVL" || k == "PWD" || k == "OLDPWD" {
			continue
		}
		env = append(env, string(v))
	}
	if len(env) == 0 {
		return base
	}
	return env
}

// limitedBuffer keeps the first MiB.
type limitedBuffer struct{ b []byte }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if room := 1<<20 - len(l.b); room > 0 {
		l.b = append(l.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// merge sets variables in an environment.
func merge(env []string, extra map[string]string) []string {
	out := slices.DeleteFunc(env, func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		_, ok := extra[k]
		return ok
	})
	return append(out, flatten(extra)...)
}

// unifiedPath finds the cgroup v2 path in the text of /proc/self/cgroup.
func unifiedPath(text string) string {
	for line := range strings.Lines(text) {
		if p, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(p)
		}
	}
	return ""
}

// lookPath finds an executable as the user's shell would.
func lookPath(name string, env []string, dir string) string {
	if strings.Contains(name, "/") {
		return name
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		p := filepath.Join(d, name)
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p
		}
	}
	return name
}
