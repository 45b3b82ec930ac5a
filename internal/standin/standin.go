// Package standin makes container images for tests that stand in for the
// official ones of MySQL, Redis and PostgreSQL: real servers from Debian's
// packages, in an archive as docker save writes it, with entrypoints that honour
// the same variables. One stands in for Debian's own, with the packages that the
// sample workspace's Dockerfile would install. They need no registry. Nothing
// that is shipped uses this package.
//
//	file, err := standin.Archive(ctx, dir, "mysql")
package standin

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gofrs/flock"
)

//go:embed files
var files embed.FS

// recipe says what is in an image.
type recipe struct {
	Name      string
	Reference string // of the image that it stands in for
	Packages  []string
	// Keep is what is taken of the packages, as paths or directories (with a
	// trailing slash); executables bring the libraries along that they need.
	Keep, Drop []string
	Links      map[string]string
	Dirs       []string // that the server writes to
	Volume     string
	Env        []string
	Port       string
	Entrypoint string // content; without one it is a base image, whose user is root
}

const format = 1

// user is whom the servers run as.
const user = 999

var shell = []string{"usr/bin/dash", "usr/bin/cat", "usr/bin/mkdir", "usr/bin/rm", "usr/bin/sleep", "usr/bin/chmod", "usr/bin/env", "usr/bin/ls", "usr/bin/id", "usr/bin/hostname"}

var recipes = []recipe{
	{
		Name: "mysql", Reference: "mysql:8.0", Packages: []string{"mariadb-server-core", "mariadb-client-core"},
		Keep:   []string{"usr/sbin/mariadbd", "usr/bin/mariadb", "usr/share/mariadb/english/", "usr/share/mariadb/charsets/", "usr/share/mariadb/mariadb_system_tables.sql", "usr/share/mariadb/mariadb_performance_tables.sql", "usr/share/mariadb/mariadb_system_tables_data.sql"},
		Links:  map[string]string{"usr/bin/mysql": "mariadb"},
		Dirs:   []string{"var/lib/mysql"},
		Volume: "/var/lib/mysql", Port: "3306/tcp",
	},
	{
		Name: "redis", Reference: "redis:7-alpine", Packages: []string{"redis-server", "redis-tools"},
		Keep: []string{"usr/bin/redis-server", "usr/bin/redis-cli", "usr/bin/redis-check-rdb"}, Dirs: []string{"data"},
		Volume: "/data", Port: "6379/tcp",
	},
	{
		Name: "postgres", Reference: "postgres:16-alpine", Packages: []string{"postgresql-17", "postgresql-client-17"},
		Keep: []string{"usr/lib/postgresql/17/bin/postgres", "usr/lib/postgresql/17/bin/initdb", "usr/lib/postgresql/17/bin/psql", "usr/lib/postgresql/17/lib/",
			"usr/share/postgresql/17/", "usr/share/zoneinfo/UTC", "usr/share/zoneinfo/Etc/UTC"},
		Drop:   []string{"usr/lib/postgresql/17/lib/bitcode/", "usr/lib/postgresql/17/lib/llvmjit.so", "usr/lib/postgresql/17/lib/llvmjit_types.bc", "usr/lib/postgresql/17/lib/pgxs/", "usr/share/postgresql/17/man/"},
		Dirs:   []string{"var/lib/postgresql/data"},
		Env:    []string{"PGDATA=/var/lib/postgresql/data"},
		Volume: "/var/lib/postgresql/data", Port: "5432/tcp",
	},
	{
		Name: "python", Reference: "debian:trixie-slim", Packages: []string{"python3", "python3-pymysql", "python3-redis", "python3-cryptography"},
		Keep: []string{"usr/bin/python3", "usr/bin/python3.13", "usr/lib/python3.13/", "usr/lib/python3/dist-packages/",
			"usr/lib/x86_64-linux-gnu/ossl-modules/", "usr/lib/aarch64-linux-gnu/ossl-modules/"}, // loaded by name
		Drop: []string{"usr/lib/python3.13/idlelib/", "usr/lib/python3.13/pydoc_data/", "usr/lib/python3.13/test/", "usr/lib/python3.13/turtledemo/"},
	},
}

// Names lists the images there are, with the references of those they stand in
// for.
func Names() map[string]string {
	m := map[string]string{}
	for _, r := range recipes {
		m[r.Name] = r.Reference
	}
	return m
}

// Archive returns the file of a stand-in for this machine's architecture below
// dir, and makes it unless it is there; it needs mmdebstrap and the
// distribution's mirror then. Several processes may call it at once.
func Archive(ctx context.Context, dir, name string) (string, error) {
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.Name == name })
	if i < 0 {
		return "", fmt.Errorf("there is no stand-in called %s", name)
	}
	r := recipes[i]
	if script, err := files.ReadFile("files/" + name + ".sh"); err == nil {
		r.Entrypoint = string(script)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	r.Packages = append([]string{"dash", "coreutils", "hostname", "libc-bin"}, r.Packages...)
	r.Keep = append(slices.Clone(shell), r.Keep...)
	text, err := json.Marshal([]any{format, runtime.GOARCH, r})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	dir = filepath.Join(dir, ".standins")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	target := filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:8])+".tar")
	lock := flock.New(filepath.Join(dir, name+".lock"))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	packages := target + ".packages"
	defer os.Remove(packages)
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=extract", "--format=tar", "--architectures="+runtime.GOARCH,
		"--include="+strings.Join(r.Packages, ","), "trixie", packages)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mmdebstrap for the stand-in %s: %w\n%s", name, err, out)
	}
	half := target + ".half"
	defer os.Remove(half)
	if err := r.write(packages, half); err != nil {
		return "", fmt.Errorf("stand-in %s: %w", name, err)
	}
	// One archive of a name is enough.
	if old, err := filepath.Glob(filepath.Join(dir, name+"-*.tar")); err == nil {
		for _, f := range old {
			os.Remove(f)
		}
	}
	return target, os.Rename(half, target)
}
