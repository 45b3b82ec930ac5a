package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/smalldisk"
	"sandboxforge/internal/store"
)

// TestAFullDisk: an instance can be destroyed, and one that has expired is
// cleared away, while the disk that holds the state is full. It runs in a mount
// namespace of its own, on a small file system.
func TestAFullDisk(t *testing.T) {
	dir, inside := smalldisk.Run(t, "2m")
	if !inside {
		return
	}
	for _, c := range []struct {
		name  string
		alone bool // no other process has the database open
		end   func(s *Service, l store.Lease) error
		want  store.Status
	}{
		{"destroy", false, func(s *Service, l store.Lease) error {
			_, err := s.DestroyInstance(t.Context(), DestroyInstanceRequest{InstanceID: l.InstanceID})
			return err
		}, store.Destroyed},
		{"expiry", true, func(s *Service, l store.Lease) error {
			res := &GCResult{}
			s.reconcileLease(t.Context(), l, res)
			if len(res.Failures) > 0 {
				return errors.New(res.Failures[0].Reason)
			}
			return nil
		}, store.Expired},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := filepath.Join(dir, c.name)
			ahead := time.Duration(0)
			open := func() *Service {
				settings, err := config.LoadSettings(func(k string) string {
					return map[string]string{"HOME": dir, "SANDBOXFORGE_HOME": home}[k]
				}, "linux")
				if err != nil {
					t.Fatal(err)
				}
				disk := filepath.Join(home, "disk")
				s, err := Open(t.Context(), Options{Settings: settings, Backends: diskOnly{disk: disk}, Clock: func() time.Time { return time.Now().Add(ahead) }})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				return s
			}
			s := open()
			l := runningLease(t, s)
			fill(t, filepath.Join(home, "disk"))
			if _, _, err := s.store.Extend(t.Context(), l.InstanceID, time.Minute, time.Hour); !fault.Is(err, fault.InsufficientDisk) {
				t.Fatalf("the disk is not full: %v", err)
			}
			ahead = 2 * time.Hour
			if c.alone {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			second := open() // another server, or the command line
			if err := c.end(second, l); err != nil {
				t.Fatal(err)
			}
			if l, err := second.store.Lease(t.Context(), l.InstanceID); err != nil || l.Status != c.want {
				t.Errorf("status %s, %v; want %s", l.Status, err, c.want)
			}
		})
	}
}

// diskOnly is a backend whose VM is a file, its disk.
type diskOnly struct {
	Backends
	disk string
}

func (d diskOnly) ByName(string) (Selected, error) {
	return Selected{Backend: diskVM{disk: d.disk}}, nil
}

type diskVM struct {
	noVMs
	disk string
}

func (d diskVM) Delete(context.Context, string) error { return os.RemoveAll(d.disk) }

// fill writes a file until nothing more fits.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4<<10); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
