package standin

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// found is an entry of the package archive.
type found struct {
	link   string   // of a symlink
	needed []string // libraries
	interp string
}

// write makes the image's archive of the packages'.
func (r recipe) write(packages, target string) error {
	all := map[string]*found{}
	err := each(packages, func(name string, h *tar.Header, body io.Reader) error {
		f := &found{link: h.Linkname}
		all[name] = f
		if h.Typeflag != tar.TypeReg || h.Size > 64<<20 || !strings.HasPrefix(name, "usr/") {
			return nil
		}
		data, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		if e, err := elf.NewFile(bytes.NewReader(data)); err == nil {
			f.needed, _ = e.ImportedLibraries() // static ones need none
			if s := e.Section(".interp"); s != nil {
				if b, err := s.Data(); err == nil {
					f.interp = strings.TrimPrefix(strings.TrimRight(string(b), "\x00"), "/")
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	keep, err := r.closure(all)
	if err != nil {
		return err
	}
	layer, err := os.CreateTemp(path.Dir(target), "layer-*")
	if err != nil {
		return err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	sum := sha256.New()
	if err := r.layer(packages, keep, io.MultiWriter(layer, sum)); err != nil {
		return err
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	diff := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	run := map[string]any{
		"Env": append([]string{"PATH=/usr/lib/postgresql/17/bin:/usr/sbin:/usr/bin", "HOME=/tmp"}, r.Env...), "WorkingDir": "/",
		"Labels": map[string]string{"sandboxforge.standin": r.Name},
	}
	if r.Entrypoint == "" {
		run["Cmd"] = []string{"/bin/sh"}
	} else {
		run["User"], run["Entrypoint"] = fmt.Sprintf("%d:%d", user, user), []string{"/entrypoint"}
		run["Volumes"], run["ExposedPorts"] = map[string]any{r.Volume: struct{}{}}, map[string]any{r.Port: struct{}{}}
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": stamp.Format(time.RFC3339), "config": run,
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{diff}},
		"history": []any{map[string]any{"created": stamp.Format(time.RFC3339), "created_by": "stand-in for tests"}},
	})
	if err != nil {
		return err
	}
	index, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{r.Reference}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	defer out.Close()
	tw := tar.NewWriter(out)
	for _, m := range []struct {
		name string
		size int64
		body io.Reader
	}{{"manifest.json", int64(len(index)), bytes.NewReader(index)}, {"config.json", int64(len(config)), bytes.NewReader(config)}, {"layer.tar", size, layer}} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: m.name, Mode: 0o644, Size: m.size, ModTime: stamp}); err != nil {
			return err
		}
		if _, err := io.Copy(tw, m.body); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), out.Close())
}

// stamp is the time of everything in an image.
var stamp = time.Unix(1_700_000_000, 0).UTC()

func each(archive string, f func(name string, h *tar.Header, body io.Reader) error) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	for tr := tar.NewReader(in); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), h, tr); err != nil {
			return err
		}
	}
}

func within(list []string, name string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		return name == strings.TrimSuffix(p, "/") || strings.HasSuffix(p, "/") && strings.HasPrefix(name, p)
	})
}

// closure is what the image keeps: the recipe's files, what links among them
// point to, and the libraries of all executables.
func (r recipe) closure(all map[string]*found) (map[string]bool, error) {
	libraries := map[string]string{} // by name
	for name := range all {
		if strings.HasPrefix(name, "usr/lib/") && strings.Contains(path.Base(name), ".so") && strings.Count(name, "/") <= 3 {
			libraries[path.Base(name)] = name
		}
	}
	keep := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		// /lib and its kin are links to usr.
		for _, p := range []string{"lib/", "lib64/", "bin/", "sbin/"} {
			if strings.HasPrefix(name, p) {
				name = "usr/" + name
			}
		}
		f := all[name]
		if f == nil {
			return fmt.Errorf("%s is in no package", name)
		}
		if keep[name] {
			return nil
		}
		keep[name] = true
		if f.link != "" {
			to := f.link
			if !path.IsAbs(to) {
				to = path.Join(path.Dir(name), to)
			}
			if err := add(strings.TrimPrefix(path.Clean("/"+to), "/")); err != nil {
				return err
			}
		}
		for _, l := range f.needed {
			if libraries[l] == "" {
				return fmt.Errorf("%s needs %s, which is in no package", name, l)
			}
			if err := add(libraries[l]); err != nil {
				return err
			}
		}
		if f.interp != "" {
			return add(f.interp)
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if within(r.Keep, name) && !within(r.Drop, name) {
			if err := add(name); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range r.Keep {
		if !strings.HasSuffix(p, "/") && !keep[p] {
			return nil, fmt.Errorf("%s is in no package", p)
		}
	}
	return keep, nil
}

// layer writes the image's only layer.
func (r recipe) layer(packages string, keep map[string]bool, out io.Writer) error {
	tw := tar.NewWriter(out)
	dirs := map[string]bool{".": true}
	var parents func(name string) error
	mkdir := func(name string, mode int64, uid int) error {
		if dirs[name] {
			return nil
		}
		if err := parents(name); err != nil {
			return err
		}
		dirs[name] = true
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, Uid: uid, Gid: uid, ModTime: stamp})
	}
	parents = func(name string) error { return mkdir(path.Dir(name), 0o755, 0) }
	link := func(name, to string) error {
		if err := parents(name); err != nil {
			return err
		}
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777, ModTime: stamp})
	}
	write := func(name, text string, mode int64) error {
		if err := parents(name); err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text)), ModTime: stamp}); err != nil {
			return err
		}
		_, err := io.WriteString(tw, text)
		return err
	}
	for _, d := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := link(d, "usr/"+d); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		name string
		mode int64
		uid  int
	}{{"tmp", 0o1777, 0}, {"run", 0o1777, 0}, {"proc", 0o755, 0}, {"sys", 0o755, 0}, {"dev", 0o755, 0}} {
		if err := mkdir(d.name, d.mode, d.uid); err != nil {
			return err
		}
	}
	for _, d := range r.Dirs {
		if err := mkdir(d, 0o700, user); err != nil {
			return err
		}
	}
	name, id, group := r.Name, user, r.Name
	if r.Entrypoint == "" {
		name, id, group = "nobody", 65534, "nogroup"
	}
	err := errors.Join(
		write("etc/passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\n%s:x:%d:%d::/tmp:/bin/sh\n", name, id, id), 0o644),
		write("etc/group", fmt.Sprintf("root:x:0:\n%s:x:%d:\n", group, id), 0o644),
		link("usr/bin/sh", "dash"),
	)
	if err == nil && r.Entrypoint != "" {
		err = write("entrypoint", r.Entrypoint, 0o755)
	}
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Links)) {
		if err := link(name, r.Links[name]); err != nil {
			return err
		}
	}
	err = each(packages, func(name string, h *tar.Header, body io.Reader) error {
		if !keep[name] || r.Links[name] != "" {
			return nil
		}
		switch h.Typeflag {
		case tar.TypeDir:
			return nil
		case tar.TypeSymlink:
			return link(name, h.Linkname)
		case tar.TypeReg:
			if err := parents(name); err != nil {
				return err
			}
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: h.Mode & 0o777, Size: h.Size, ModTime: stamp}); err != nil {
				return err
			}
			_, err := io.Copy(tw, body)
			return err
		}
		return fmt.Errorf("%s is of a kind that no image keeps", name)
	})
	return errors.Join(err, tw.Close())
}
