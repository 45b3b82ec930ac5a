package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"time"
)

const testKernel = "6.1-test"

// packageArchive is a small installed system.
func packageArchive(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h tar.Header, body string) {
		h.Size = int64(len(body))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"./", "./etc/", "./usr/", "./usr/lib/", "./var/", "./var/log/", "./tmp/", "./boot/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755}, "")
	}
	mods := "./usr/lib/modules/" + testKernel + "/"
	for name, body := range map[string]string{
		"./boot/vmlinuz-" + testKernel: string(bzImage(gzipOf(elf))),
		"./etc/passwd":                 "root:x:0:0:root:/root:/bin/bash\n",
		"./etc/shadow":                 "root:secret:19000:0:99999:7:::\n",
		"./etc/group":                  "root:x:0:\nsudo:x:27:\ndocker:x:101:someone\n",
		"./etc/gshadow":                "root:*::\nsudo:*::\n",
		"./etc/hostname":               "builder\n",
		"./etc/resolv.conf":            "nameserver 192.0.2.1\n",
		"./etc/machine-id":             "0123\n",
		"./var/log/dpkg.log":           "noise\n",
		"./var/lib/dpkg/status":        "Package: b\nStatus: install ok installed\nVersion: 2\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 3\n\nPackage: a\nStatus: install ok installed\nVersion: 1\n",
		mods + "modules.dep":           "kernel/virtio_net.ko: kernel/net_failover.ko kernel/failover.ko\nkernel/net_failover.ko: kernel/failover.ko\nkernel/failover.ko:\nkernel/virtio_blk.ko:\nkernel/virtio-rng.ko:\n",
		mods + "modules.builtin":       "kernel/ext4.ko\n",
		mods + "kernel/virtio_net.ko":  "net", mods + "kernel/net_failover.ko": "nf", mods + "kernel/failover.ko": "fo",
		mods + "kernel/virtio_blk.ko": "blk", mods + "kernel/virtio-rng.ko": "rng",
	} {
		add(tar.Header{Typeflag: tar.TypeReg, Name: name}, body)
	}
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "./vmlinuz", Linkname: "boot/vmlinuz-" + testKernel}, "")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type entry struct {
	header tar.Header
	body   string
}

func composeTest(t *testing.T, r Recipe, archive []byte) (*composed, map[string]entry) {
	t.Helper()
	var out bytes.Buffer
	found, err := compose(context.Background(), r, bytes.NewReader(archive), nil, &out, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]entry{}
	in := tar.NewReader(&out)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return found, entries
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean(h.Name)
		if _, twice := entries[name]; twice && h.Typeflag != tar.TypeDir {
			t.Errorf("%s is there twice", name)
		}
		if dir := path.Dir(name); dir != "." && entries[dir].header.Typeflag != tar.TypeDir && strings.HasPrefix(name, "etc/systemd") {
			t.Errorf("%s comes before its directory", name)
		}
		entries[name] = entry{*h, string(body)}
	}
}

func TestCompose(t *testing.T) {
	r := testRecipe()
	r.Groups = []string{"sudo", "docker"}
	r.LateModules = []string{"virtio-net", "ext4", "not-there"}
	r.Masks = []string{"x.timer"}
	r.Links = map[string]string{"etc/l": "/target"}
	found, got := composeTest(t, r, packageArchive(t))

	for name, want := range map[string]string{
		"etc/passwd":                   "root:x:0:0:root:/root:/bin/bash\nsandbox:x:1000:1000::/home/sandbox:/bin/bash\n",
		"etc/shadow":                   "root:*:19000:0:99999:7:::\nsandbox:*:20000:0:99999:7:::\n",
		"etc/group":                    "root:x:0:\nsudo:x:27:sandbox\ndocker:x:101:someone,sandbox\nsandbox:x:1000:\n",
		"etc/gshadow":                  "root:*::\nsudo:*::sandbox\nsandbox:!::\n",
		"etc/machine-id":               "",
		"etc/resolv.conf":              "nameserver " + GuestGateway + "\noptions edns0\n",
		"usr/lib/sandboxforge/agent":   "agent",
		"usr/lib/sandboxforge/shim":    "shim",
		"usr/lib/sandboxforge/modules": "kernel/failover.ko\nkernel/net_failover.ko\nkernel/virtio_net.ko\n",
	} {
		if e, ok := got[name]; !ok || e.body != want {
			t.Errorf("%s: got %q (there: %v), want %q", name, e.body, ok, want)
		}
	}
	for _, name := range []string{"etc/hostname", "var/log/dpkg.log", "vmlinuz", "boot/vmlinuz-" + testKernel} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is in the image", name)
		}
	}
	for name, mode := range map[string]int64{"tmp": 0o1777, "workspace": 0o755, "home/sandbox": 0o755, "usr/lib/sandboxforge/agent": 0o755} {
		if got[name].header.Mode != mode {
			t.Errorf("%s has mode %o, want %o", name, got[name].header.Mode, mode)
		}
	}
	if h := got["workspace"].header; h.Uid != sandboxID || h.Gid != sandboxID {
		t.Errorf("workspace belongs to %d:%d", h.Uid, h.Gid)
	}
	for name, target := range map[string]string{"etc/systemd/system/x.timer": "/dev/null", "etc/l": "/target"} {
		if got[name].header.Linkname != target {
			t.Errorf("%s links to %q", name, got[name].header.Linkname)
		}
	}
	if len(found.packages) != 2 || found.packages[0] != (Package{"a", "1"}) {
		t.Errorf("packages: %v", found.packages)
	}
	var early []string
	for _, m := range found.early {
		early = append(early, m.name)
	}
	if s := strings.Join(early, " "); s != "virtio_blk.ko failover.ko net_failover.ko virtio_net.ko virtio-rng.ko" || found.release != testKernel {
		t.Errorf("early modules %q of kernel %q", s, found.release)
	}
}

func TestComposeRefuses(t *testing.T) {
	whole := packageArchive(t)
	missing := testRecipe()
	missing.EarlyModules = []string{"nonesuch"}
	for name, c := range map[string]struct {
		recipe  Recipe
		archive []byte
	}{
		"a truncated archive":        {testRecipe(), whole[:len(whole)/2]},
		"an archive with no kernel":  {testRecipe(), make([]byte, 1024)},
		"garbage":                    {testRecipe(), bytes.Repeat([]byte("x"), 2048)},
		"a module that is not there": {missing, whole},
	} {
		if _, err := compose(context.Background(), c.recipe, bytes.NewReader(c.archive), nil, io.Discard, time.Time{}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestDropper(t *testing.T) {
	d := newDropper([]string{"boot/*", "etc/hostname", "usr/share/x"})
	for name, want := range map[string]bool{
		"boot": false, "boot/a": true, "boot/a/b": true, "etc/hostname": true, "etc/hostname2": false,
		"usr/share/x": true, "usr/share/x/y/z": true, "usr/share": false, "x/boot/a": false,
	} {
		if d.match(name) != want {
			t.Errorf("%s: dropped %v", name, !want)
		}
	}
}
