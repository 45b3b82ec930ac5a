package e2e

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// effects names, for each key of the configuration, the test that asserts what
// differs in a guest or in a result between two values of it.
var effects = map[string]string{
	"vm.cpus": "TestKeysOfTheVM", "vm.memory_gib": "TestKeysOfTheVM", "vm.arch": "TestKeysOfTheVM", "vm.image": "TestKeysOfTheVM",
	"vm.disk_gib": "TestCloneHasTheDiskThatWasAskedFor",
	// Of the lima backend, which this build does not have: what can be seen is
	// which values a workspace may choose, and the hint on another backend.
	"vm.vm_type": "TestKeysOfAnotherBackendAreHints", "vm.template": "TestKeysOfAnotherBackendAreHints", "vm.allowed_templates": "TestAllProblemsAtOnceWithTheirPlaces",

	"docker.install_if_missing": "TestDockerIsInstalledWhereItIsMissing",

	"build.enable_buildkit": "TestBuildIsReusedForTheSameContextOnly", "build.min_free_gib": "TestBuildThatFails",
	"build.prebuilt.enabled": "TestPrebuiltImages", "build.prebuilt.validation": "TestPrebuiltImages",
	"build.prebuilt.staleness_check.check_git_commit": "TestPrebuiltImages", "build.prebuilt.staleness_check.check_dependencies": "TestPrebuiltImages",
	"build.prebuilt.staleness_check.check_age_threshold": "TestPrebuiltImages", "build.prebuilt.staleness_check.on_stale": "TestPrebuiltImages",
	"build.image_caching.enabled": "TestBuildByGit", "build.image_caching.strategy": "TestBuildByGit", "build.image_caching.tag_format": "TestBuildByGit",
	"build.staleness_detection.check_git_commit": "TestBuildByGit", "build.staleness_detection.check_git_dirty": "TestBuildByGit",
	"build.staleness_detection.check_dockerfile": "TestBuildByGit", "build.staleness_detection.check_dependencies": "TestBuildByGit",
	"build.staleness_detection.max_age_threshold": "TestBuildByGit", "build.staleness_detection.on_stale": "TestBuildByGit",
	"build.staleness_detection.on_dirty_workspace": "TestBuildByGit", "build.staleness_detection.on_missing": "TestPrebuiltImages",

	"infra.ensure_network": "TestServicesThatCannotRun", "infra.network_name": "TestServicesThatCannotRun", "infra.network_name_prefix": "TestKeysOfTheNetwork",
	"infra.bridge_to_compose_network": "TestKeysOfTheNetwork", "infra.include_services_by_default": "TestServicesInFiles", "infra.inject_env_on_host": "TestServicesInFiles",
	"infra.mysql.enabled": "TestKeysOfTheServices", "infra.mysql.image": "TestKeysOfTheServices", "infra.mysql.root_password": "TestKeysOfTheServices", "infra.mysql.database": "TestKeysOfTheServices",
	"infra.mysql.container_name_prefix": "TestKeysOfTheServices", "infra.mysql.extra_env": "TestKeysOfTheServices", "infra.mysql.inject_env_to": "TestKeysOfTheServices",
	"infra.redis.enabled": "TestKeysOfTheServices", "infra.redis.image": "TestKeysOfTheServices",
	"infra.redis.container_name_prefix": "TestKeysOfTheServices", "infra.redis.extra_env": "TestKeysOfTheServices", "infra.redis.inject_env_to": "TestKeysOfTheServices",
	"infra.postgres.enabled": "TestKeysOfTheServices", "infra.postgres.image": "TestKeysOfTheServices", "infra.postgres.password": "TestKeysOfTheServices", "infra.postgres.database": "TestKeysOfTheServices",
	"infra.postgres.container_name_prefix": "TestKeysOfTheServices", "infra.postgres.extra_env": "TestKeysOfTheServices", "infra.postgres.inject_env_to": "TestKeysOfTheServices",

	"sync.include_git": "TestKeysOfTheSync", "sync.exclude_patterns": "TestKeysOfTheSync", "sync.use_gitignore": "TestKeysOfTheSync", "sync.allow_refused": "TestKeysOfTheSync",
}

// TestEveryKeyHasAnEffect holds that table against the keys that there are and
// against the tests that there are: the function must exist and speak of the key.
func TestEveryKeyHasAnEffect(t *testing.T) {
	bodies := map[string]string{}
	err := filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != repo {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, text, 0)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Body != nil && strings.HasPrefix(fn.Name.Name, "Test") {
				bodies[fn.Name.Name] += string(text[files.Position(fn.Body.Pos()).Offset:files.Position(fn.Body.End()).Offset])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range config.Schema() {
		name := effects[k.Path]
		body, there := bodies[name]
		switch {
		case name == "":
			t.Errorf("no test shows what %s does", k.Path)
		case !there:
			t.Errorf("%s: there is no test %s", k.Path, name)
		case !strings.Contains(body, k.Path[strings.LastIndex(k.Path, ".")+1:]):
			t.Errorf("%s: %s does not speak of it", k.Path, name)
		}
	}
	if len(effects) != len(config.Schema()) {
		t.Errorf("%d keys have an effect, of %d", len(effects), len(config.Schema()))
	}
}

func TestKeysOfTheVM(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	vm := func(keys obj) obj {
		args := minimal(st.workspace)
		for k, v := range keys {
			args["overrides"].(obj)["vm"].(obj)[k] = v
		}
		return args
	}
	look := func(keys obj) (cpus, mebibytes int, docker bool) {
		inst := sv.create(t, vm(keys))
		var has string
		out := sv.output(t, inst.InstanceID, "nproc; sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo; [ -e /usr/bin/dockerd ] || [ -e /usr/sbin/dockerd ] && echo yes || echo no")
		if _, err := fmt.Sscan(out, &cpus, &mebibytes, &has); err != nil {
			t.Fatalf("%v: %q", err, out)
		}
		sv.must(t, "destroy_instance", obj{"instance_id": inst.InstanceID}, nil)
		return cpus, mebibytes / 1024, has == "yes"
	}
	all := runtime.NumCPU()
	if cpus, mem, docker := look(obj{"cpus": 1, "memory_gib": 0.25}); cpus != 1 || mem > 256 || mem < 150 || docker {
		t.Errorf("cpus=1, memory_gib=0.25, image=minimal: %d CPUs, %d MiB, Docker %t", cpus, mem, docker)
	}
	if cpus, mem, docker := look(obj{"cpus": all, "memory_gib": 1.25, "disk_gib": 4, "image": "default"}); cpus != all || mem > 1280 || mem < 1024 || !docker {
		t.Errorf("cpus=%d, memory_gib=1.25, image=default: %d CPUs, %d MiB, Docker %t", all, cpus, mem, docker)
	}
	sv.fails(t, fault.InsufficientHostResources, "create_instance", vm(obj{"cpus": all + 1}))
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if e := sv.fails(t, fault.ImageNotFound, "create_instance", vm(obj{"arch": other})); !strings.Contains(e.Message, other) {
		t.Errorf("arch=%s: %s", other, e.Message)
	}
}

func TestKeysOfTheSync(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	for _, f := range []string{".git/HEAD", ".gitignore", "by-gitignore.txt", "by-pattern.txt", "__pycache__/x", "plain.txt"} {
		write(t, st.workspace, f, f+"\n")
	}
	write(t, st.workspace, ".gitignore", "by-gitignore.txt\n")
	id := sv.create(t, minimal(st.workspace)).InstanceID
	for i, c := range []struct {
		config string
		want   []string
	}{
		{"", []string{".gitignore", "by-gitignore.txt", "by-pattern.txt", "plain.txt"}},
		{"[sync]\ninclude_git = true\n", []string{".git/HEAD", ".gitignore", "by-gitignore.txt", "by-pattern.txt", "plain.txt"}},
		{"[sync]\nuse_gitignore = true\n", []string{".gitignore", "by-pattern.txt", "plain.txt"}},
		{"[sync]\nexclude_patterns = ['by-pattern.txt']\n", []string{".gitignore", "__pycache__/x", "by-gitignore.txt", "plain.txt"}},
	} {
		sv.configure(t, c.config)
		// What one sync brought and the next does not look at stays: each has a
		// directory of its own.
		dir := fmt.Sprintf("/tmp/sync-%d", i)
		sv.must(t, "sync_workspace_to_instance", obj{"instance_id": id, "remote_path": dir}, nil)
		got := strings.Fields(sv.output(t, id, "cd "+dir+" && find . -type f ! -name .sandboxforge.toml | sed 's|^./||' | LC_ALL=C sort"))
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: the guest has %v, want %v", c.config, got, c.want)
		}
	}
	sv.configure(t, "")
	sv.must(t, "sync_workspace_to_instance", obj{"instance_id": id}, nil)
	sv.output(t, id, "cd /workspace && mkdir -p .vscode && echo 1 >.vscode/tasks.json")
	back := func() (r sandbox.SyncFromInstanceResult) {
		sv.must(t, "sync_instance_to_workspace", obj{"instance_id": id, "dry_run": true}, &r)
		return r
	}
	if r := back(); slices.Contains(r.Created, ".vscode/tasks.json") || len(r.Refused) == 0 {
		t.Errorf("without allow_refused: %+v", r)
	}
	write(t, filepath.Dir(st.home), ".config/sandboxforge-mcp/config.toml", "[sync]\nallow_refused = ['.vscode']\n")
	if r := back(); !slices.Contains(r.Created, ".vscode/tasks.json") || len(r.Refused) != 0 {
		t.Errorf("with allow_refused: %+v", r)
	}
}

func TestKeysOfTheNetwork(t *testing.T) {
	b := newBuilder(t)
	b.config(t, "[infra]\nnetwork_name_prefix = 'other'\n")
	if r := b.prepare(t, b.id, obj{"include_services": false, "sync_workspace": false}); r.Network.Name != "other-sandbox" || r.Network.Status != "created" {
		t.Errorf("network_name_prefix: %+v", r.Network)
	}
	b.sh(t, "docker network rm other-sandbox")
	b.sh(t, `printf 'name: bridged\nservices:\n  a:\n    image: toolbox:1\n    command: sleep 300\n' >compose.yaml`)
	for _, bridge := range []bool{true, false} {
		b.config(t, fmt.Sprintf("[infra]\nbridge_to_compose_network = %t\n", bridge))
		var r sandbox.DockerComposeResult
		b.must(t, "docker_compose", obj{"instance_id": b.id, "project_dir": b.dir, "action": "up"}, &r)
		networks := strings.Fields(b.sh(t, `docker inspect -f '{{range $k, $v := .NetworkSettings.Networks}}{{$k}} {{end}}' bridged-a-1`))
		if slices.Contains(networks, "lima-net-sandbox") != bridge || (r.Bridge.Status == "connected") != bridge {
			t.Errorf("bridge_to_compose_network = %t: networks %v, %+v", bridge, networks, r.Bridge)
		}
		b.sh(t, "docker compose down -t 0 2>/dev/null")
	}
}

// TestKeysOfTheServices sets every key of each service and looks at the
// container, the variables and the files that come of it.
func TestKeysOfTheServices(t *testing.T) {
	sv, inst := withServices(t)
	id := inst.InstanceID
	sv.output(t, id, "docker tag mysql:8.0 my:1; docker tag redis:7-alpine re:1; docker tag postgres:16-alpine pg:1")
	const others = `
[infra.mysql]
image = 'my:1'
root_password = 'a-word'
database = 'shop'
container_name_prefix = 'keys-m'
inject_env_to = 'm.env'
extra_env = { EXTRA = 'm' }
[infra.redis]
image = 're:1'
container_name_prefix = 'keys-r'
inject_env_to = 'r.env'
extra_env = { EXTRA = 'r' }
[infra.postgres]
image = 'pg:1'
password = 'another-word'
database = 'store'
container_name_prefix = 'keys-p'
inject_env_to = 'p.env'
extra_env = { EXTRA = 'p' }
`
	sv.configure(t, others)
	r := sv.prepare(t, id)
	for name, want := range map[string]struct{ container, image, database, file, extra string }{
		"mysql":    {"keys-m-sandbox", "my:1", "shop", "m.env", "EXTRA=m"},
		"redis":    {"keys-r-sandbox", "re:1", "", "r.env", "EXTRA=r"},
		"postgres": {"keys-p-sandbox", "pg:1", "store", "p.env", "EXTRA=p"},
	} {
		s := r.Services[name]
		if s.Container != want.container || s.Image != want.image || s.Database != want.database || !r.ServiceReadiness[name].Ready {
			t.Errorf("%s: %+v", name, s)
		}
		out := sv.output(t, id, "docker inspect -f '{{.Config.Image}}{{range .Config.Env}} {{.}}{{end}}' "+want.container+"; grep -l "+want.container+" *.env")
		if !strings.HasPrefix(out, want.image+" ") || !strings.Contains(out, " "+want.extra) || !strings.HasSuffix(out, "\n"+want.file+"\n") {
			t.Errorf("%s: %q", name, out)
		}
	}
	if e := r.ConnectionEnv; e["DB_PASSWORD"] != "a-word" || e["DB_NAME"] != "shop" || e["PGPASSWORD"] != "another-word" || e["PGDATABASE"] != "store" {
		t.Errorf("variables: %v", e)
	}
	// The passwords and databases are the servers' own.
	out := sv.output(t, id, `docker exec -e MYSQL_PWD=a-word keys-m-sandbox mysql -h 127.0.0.1 -u root -D shop -N -e 'select 40+2'
docker exec -e PGPASSWORD=another-word keys-p-sandbox psql -h keys-p-sandbox -U postgres -d store -tAc 'select 40+2'`)
	if out != "42\n42\n" {
		t.Errorf("queries: %q", out)
	}
	sv.configure(t, "[infra.mysql]\nenabled = false\n[infra.redis]\nenabled = true\ncontainer_name_prefix = 'keys-r'\nimage = 're:1'\nextra_env = { EXTRA = 'r' }\n[infra.postgres]\nenabled = false\n")
	if r := sv.prepare(t, id); len(r.Services) != 1 || r.Services["redis"].Status != "running" || r.ConnectionEnv["DB_HOST"] != "" || r.ConnectionEnv["PGHOST"] != "" {
		t.Errorf("enabled: %+v %v", r.Services, r.ConnectionEnv)
	}
	sv.output(t, id, "docker rm -f keys-m-sandbox keys-r-sandbox keys-p-sandbox; docker rmi my:1 re:1 pg:1")
	sv.configure(t, allServices)
	if r := sv.prepare(t, id); len(r.Services) != 3 {
		t.Errorf("back again: %+v", r.Services)
	}
}

// repackDocker takes the engine's package out of a guest and leaves it in a
// repository of the guest's own, so that the real apt can install it again
// without any network.
const repackDocker = `set -e
d=$(mktemp -d); chmod 755 "$d"
dpkg -L docker.io | while read -r f; do if [ -f "$f" ] || [ -L "$f" ]; then printf '%s\n' "$f"; fi; done | tar c -T - 2>/dev/null | tar x -C "$d"
mkdir "$d/DEBIAN"
dpkg -s docker.io | awk '/^[^ ]/ { skip = /^(Status|Conffiles):/ } !skip' >"$d/DEBIAN/control"
for s in preinst postinst prerm postrm; do if [ -f "/var/lib/dpkg/info/docker.io.$s" ]; then cp "/var/lib/dpkg/info/docker.io.$s" "$d/DEBIAN/$s"; fi; done
mkdir -p /repo
dpkg-deb -Znone -b "$d" /repo/docker.io.deb >/dev/null
rm -rf "$d"
cd /repo
{ dpkg-deb -f docker.io.deb; echo "Filename: ./docker.io.deb"; echo "Size: $(stat -c %s docker.io.deb)"; echo "SHA256: $(sha256sum docker.io.deb | cut -d' ' -f1)"; } >Packages
dpkg --purge --force-depends docker.io >/dev/null 2>&1
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/nowhere ./' >/etc/apt/sources.list
[ ! -e /usr/sbin/dockerd ] && [ ! -e /usr/bin/dockerd ]`

func TestDockerIsInstalledWhereItIsMissing(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	id := sv.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true, "overrides": obj{"vm": obj{"disk_gib": 6}}}).InstanceID
	sv.output(t, id, "sudo sh -c '"+strings.ReplaceAll(repackDocker, "'", `'\''`)+"'")
	prepare := func(want string) {
		t.Helper()
		e := sv.fails(t, fault.RuntimeNotReady, "prepare_workspace", prepareArgs(id))
		if cause := fmt.Sprint(e.Details["probable_cause"]); !strings.Contains(cause, want) {
			t.Errorf("%s: %s, want %q", e.Message, cause, want)
		}
	}
	sv.configure(t, "[docker]\ninstall_if_missing = false\n")
	prepare("docker.install_if_missing is false")
	sv.configure(t, "")
	prepare("failed to download") // apt's own words
	sv.output(t, id, "sudo sed -i s,/nowhere,/repo, /etc/apt/sources.list")
	if r := sv.prepare(t, id); !r.RuntimeReady || r.Network.Name != "lima-net-sandbox" || r.DockerCommand != "docker" {
		t.Errorf("after the installation: %+v", r)
	}
	if out := sv.output(t, id, "docker ps -q | wc -l; dpkg -s docker.io | grep ^Status"); out != "0\nStatus: install ok installed\n" {
		t.Errorf("Docker: %q", out)
	}
	// Where nothing could run it, it is not tried.
	small := sv.create(t, minimal(st.workspace)).InstanceID
	e := sv.fails(t, fault.RuntimeNotReady, "prepare_workspace", prepareArgs(small))
	if !strings.Contains(fmt.Sprint(e.Details["next_steps"]), "vm.image") {
		t.Errorf("the minimal image: %+v", e)
	}
}
