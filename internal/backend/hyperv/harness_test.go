package hyperv

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	diskfile "github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/backendtest"
	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/sshlink"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(standin.StateEnv); dir != "" {
		os.Exit(standin.Main(dir, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	backendtest.Main(m, open)
}

// testConfig is a Config and the world behind it.
type testConfig struct {
	Config
	World string
	Real  bool // its machines are QEMU's, and the agent is reached over ssh
}

func open(raw json.RawMessage) (backend.Backend, error) {
	var c testConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if c.Real {
		c.Config.Connect = connectReal(c.World)
		return New(c.Config)
	}
	c.Config.Connect = connectGuest(c.World)
	c.Config.NewLink = func(l sshlink.Config) Link { return &testLink{c: l} }
	return New(c.Config)
}

const baseSize = 2 << 30

// lab is a host with Hyper-V that has nothing on it, and a backend there.
type lab struct {
	world string
	c     testConfig
	b     *Backend
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in is started through a shell script")
	}
	root := t.TempDir()
	l := &lab{world: filepath.Join(root, "world")}
	ok(t, os.Mkdir(l.world, 0o700))
	ok(t, standin.New(l.world))
	// A space and letters that are not ASCII, as in many a user's directory.
	home := filepath.Join(root, "J\u00fcrgen M\u00fcller's files")
	ok(t, os.Mkdir(home, 0o700))
	l.c = testConfig{World: l.world, Config: Config{
		StorageDir: filepath.Join(home, "vms"), BaseVHDX: filepath.Join(home, "base disk.vhdx"), SwitchName: "Default Switch", SSHUser: "ubuntu",
		PowerShell: standin.Executable(t, l.world), Poll: 20 * time.Millisecond, BootTimeout: time.Minute,
	}}
	ok(t, standin.MakeDisk(l.c.BaseVHDX, baseSize))
	ok(t, os.Mkdir(l.c.StorageDir, 0o700))
	l.reopen(t)
	t.Cleanup(func() { l.b.shells.Close() })
	return l
}

func (l *lab) reopen(t *testing.T) {
	t.Helper()
	raw, err := json.Marshal(l.c)
	ok(t, err)
	b, err := open(raw)
	ok(t, err)
	l.b = b.(*Backend)
}

func (l *lab) update(t *testing.T, change func(*standin.World)) {
	t.Helper()
	ok(t, standin.Update(l.world, change))
}

func (l *lab) look(t *testing.T) *standin.World {
	t.Helper()
	w, err := standin.Load(l.world)
	ok(t, err)
	return w
}

func spec(name string) backend.Spec {
	return backend.Spec{Name: name, CPUs: 2, MemoryMiB: 1024, DiskBytes: 8 << 30, Hostname: name}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func harness(t *testing.T) *backendtest.Harness {
	l := newLab(t)
	idOf := func(name string) string {
		r, err := l.b.readRecord(name)
		if err != nil {
			return ""
		}
		return r.ID
	}
	return &backendtest.Harness{
		Backend: l.b, Config: l.c, Open: open, StateDir: l.c.StorageDir, Spec: spec, BootDeadline: 30 * time.Second, Polite: true,
		HalfMake: func(t *testing.T, name string) {
			// The machine is there without its marker, as between two cmdlets.
			r := newRecord(spec(name))
			ok(t, os.MkdirAll(filepath.Join(l.b.dir(name), hyperDir), 0o700))
			ok(t, l.b.writeRecord(r))
			l.update(t, func(w *standin.World) {
				w.VMs = append(w.VMs, &standin.VM{ID: "11111111-2222-4333-8444-555555555555", Name: r.Machine, State: "Off", Generation: 2})
			})
		},
		Kill:     func(t *testing.T, info backend.Info) { ok(t, standin.Kill(l.world, idOf(info.Name))) },
		WaitGone: func(ctx context.Context, info backend.Info) error { return nil },
		WaitAgent: func(ctx context.Context, rw io.ReadWriteCloser) (string, error) {
			line, err := bufio.NewReader(rw).ReadString('\n')
			return strings.TrimSpace(line), err
		},
	}
}

func TestContract(t *testing.T) { backendtest.Suite(t, harness) }

// guestConn is a connection to the VM that has an address.
type guestConn struct {
	net.Conn
	vm *standin.VM
}

// connectGuest connects to the guests of a world.
func connectGuest(world string) func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		w, err := standin.Load(world)
		if err != nil {
			return nil, err
		}
		for _, v := range w.VMs {
			if v.State == "Running" && v.Address == to.Addr().String() && to.Port() == 22 {
				a, b := net.Pipe()
				go func() {
					fmt.Fprintf(b, "%s booted %d\n", v.Name, v.StartedAt.UnixNano())
					io.Copy(io.Discard, b)
					b.Close()
				}()
				return guestConn{a, v}, nil
			}
		}
		return nil, errors.New("connection refused")
	}
}

// testLink is a way to such guests without ssh, which still holds both ends to
// the keys that the guest has from its seed.
type testLink struct {
	c  sshlink.Config
	mu sync.Mutex
	s  net.Conn
	x  bool
}

func (l *testLink) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	l.mu.Lock()
	if l.s != nil {
		l.s.Close()
	}
	l.mu.Unlock()
	for {
		conn, err := l.c.Dial(ctx)
		if err == nil {
			if err = l.login(conn.(guestConn).vm); err == nil {
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.x {
					conn.Close()
					return nil, net.ErrClosed
				}
				l.s = conn
				return conn, nil
			}
			conn.Close()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (l *testLink) login(v *standin.VM) error {
	s, err := readSeed(v.DVDs[0].Path)
	if err != nil {
		return err
	}
	host, err := ssh.ParsePrivateKey([]byte(s.User.Keys["ed25519_private"]))
	if err != nil {
		return err
	}
	if !bytes.Equal(host.PublicKey().Marshal(), l.c.HostKeys[0].Marshal()) {
		return errors.New("another host answers there")
	}
	login := s.User.Users[0]
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(login.Keys[0]))
	if err != nil || login.Name != l.c.User || !bytes.Equal(key.Marshal(), l.c.Signer.PublicKey().Marshal()) {
		return errors.New("permission denied (publickey)")
	}
	return nil
}

func (l *testLink) WaitFailed(ctx context.Context) error { <-ctx.Done(); return nil }

func (l *testLink) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.x = true
	if l.s != nil {
		l.s.Close()
	}
	return nil
}

// seedContent is what cloud-init would read.
type seedContent struct {
	User struct {
		Users []struct {
			Name string   `json:"name"`
			Keys []string `json:"ssh_authorized_keys"`
			Sudo string   `json:"sudo"`
		} `json:"users"`
		Keys       map[string]string `json:"ssh_keys"`
		DeleteKeys bool              `json:"ssh_deletekeys"`
	}
	Meta struct {
		Instance string `json:"instance-id"`
		Hostname string `json:"local-hostname"`
	}
	Network struct {
		Ethernets map[string]struct {
			Match      map[string]string `json:"match"`
			DHCP       bool              `json:"dhcp4"`
			Identifier string            `json:"dhcp-identifier"`
		} `json:"ethernets"`
	}
}

func readSeed(path string) (s seedContent, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return s, err
	}
	iso, err := iso9660.Read(diskfile.New(f, true), st.Size(), 0, 2048)
	if err != nil {
		return s, err
	}
	if label := strings.TrimRight(iso.Label(), " \x00"); label != "cidata" {
		return s, fmt.Errorf("the label is %q", label)
	}
	for name, v := range map[string]any{"user-data": &s.User, "meta-data": &s.Meta, "network-config": &s.Network} {
		file, err := iso.OpenFile("/"+name, os.O_RDONLY)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		raw, err := io.ReadAll(file)
		if err != nil {
			return s, err
		}
		if name == "user-data" {
			rest, found := bytes.CutPrefix(raw, []byte("#cloud-config\n"))
			if !found {
				return s, errors.New("user-data is no cloud-config")
			}
			raw = rest
		}
		if err := json.Unmarshal(raw, v); err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s, nil
}
