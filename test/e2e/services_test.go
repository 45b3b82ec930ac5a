package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/envfile"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/services"
	"sandboxforge/internal/standin"
)

// withStandins is the name of the image that has the stand-ins for the official
// database images preloaded, under their references.
const withStandins = "e2e-standins"

var standinImage struct {
	once sync.Once
	err  error
}

// buildStandins builds that image, once, by the command that users have for it.
func buildStandins(t testing.TB, st *state) {
	t.Helper()
	s := &standinImage
	s.once.Do(func() {
		args := []string{"image", "build", "default", "--as", withStandins}
		refs := standin.Names()
		for _, name := range []string{"mysql", "postgres", "python", "redis"} {
			ctx, cancel := contextFor(15 * time.Minute)
			file, err := standin.Archive(ctx, imageDir, name)
			cancel()
			if err != nil {
				s.err = err
				return
			}
			args = append(args, "--load", refs[name]+"="+file)
		}
		ctx, cancel := contextFor(15 * time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(binDir, "sandboxforge"), args...)
		cmd.Env = st.env
		if out, err := cmd.CombinedOutput(); err != nil {
			s.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
}

// servicesVM is the VM on which the services run.
var servicesVM struct {
	once sync.Once
	err  error
	sv   *server
	res  sandbox.CreateInstanceResult
}

const allServices = "[infra.mysql]\n[infra.redis]\n[infra.postgres]\n"

// withServices returns the VM with all three services, as prepare_workspace left
// them, and a server that knows it. Its workspace's configuration is reset.
func withServices(t testing.TB) (*server, *sandbox.CreateInstanceResult) {
	t.Helper()
	v := &servicesVM
	v.once.Do(func() {
		var st *state
		if st, v.err = makeState(); v.err != nil {
			return
		}
		closers = append(closers, func() error {
			if v.sv != nil {
				v.sv.session.Close()
			}
			return st.close()
		})
		buildStandins(t, st)
		write(t, st.workspace, "app.txt", "app\n")
		// To set up three servers takes minutes under emulation: the template in
		// which they run is made once for all tests.
		warmServices(t, st)
		write(t, st.workspace, ".sandboxforge.toml", allServices)
		if v.sv, v.err = st.startServer(); v.err != nil {
			return
		}
		ctx, cancel := contextFor(25 * time.Minute)
		defer cancel()
		v.err = v.sv.call(ctx, "create_instance", obj{
			"workspace_root": st.workspace, "wait_for_ready": true, "ttl_minutes": 120,
			"overrides": obj{"vm": obj{"image": withStandins}},
		}, &v.res)
		if v.err == nil {
			v.err = v.sv.logBoot("services", v.res.InstanceID)
		}
	})
	if v.err != nil {
		if v.sv != nil {
			t.Logf("server log:\n%s", lastBytes(v.sv.log.String(), 20_000))
		}
		t.Fatalf("the VM with services: %v", v.err)
	}
	t.Cleanup(func() { v.sv.configure(t, allServices) })
	return v.sv, &v.res
}

// warmServices has the workspace ask for all services, and makes the template in
// which they run.
func warmServices(t testing.TB, st *state) {
	t.Helper()
	write(t, st.workspace, ".sandboxforge.toml", preparedConfig+allServices)
	if out, err := st.cli("image", "warm", "--workspace", st.workspace); err != nil || !strings.Contains(string(out), "mysql, redis, postgres running") {
		t.Fatalf("image warm: %v: %s", err, out)
	}
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (sv *server) configure(t testing.TB, text string) {
	t.Helper()
	write(t, sv.workspace, ".sandboxforge.toml", text)
}

// prepare calls prepare_workspace and waits for everything.
func (sv *server) prepare(t testing.TB, id string, more ...obj) *sandbox.PrepareWorkspaceResult {
	t.Helper()
	var r sandbox.PrepareWorkspaceResult
	sv.must(t, "prepare_workspace", prepareArgs(id, more...), &r)
	return &r
}

func prepareArgs(id string, more ...obj) obj {
	args := obj{"instance_id": id, "wait_for_ready": true}
	for _, m := range more {
		for k, v := range m {
			args[k] = v
		}
	}
	return args
}

// output is what a command of the guest's user prints; it has to succeed.
func (sv *server) output(t testing.TB, id, command string) string {
	t.Helper()
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": id, "command": command, "timeout_seconds": 400}, &r)
	if r.ExitCode != 0 {
		t.Fatalf("%s: exit %d\n%s\n%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

func TestServicesAnswer(t *testing.T) {
	sv, inst := withServices(t)
	b := inst.Bootstrap
	if b == nil || len(b.Services) != 3 || b.Warnings != nil {
		t.Fatalf("bootstrap: %+v", b)
	}
	t.Logf("timings %v", b.TimingsMS)
	for name, port := range map[string]int{"mysql": 3306, "redis": 6379, "postgres": 5432} {
		s, r := b.Services[name], b.ServiceReadiness[name]
		if s.Status != "running" || s.Container != "lima-"+name+"-sandbox" || s.Host != s.Container || s.Port != port || !r.Ready || r.Attempts == 0 {
			t.Errorf("%s: %+v %+v", name, s, r)
		}
	}
	env := b.ConnectionEnv
	for k, want := range map[string]string{
		"DB_HOST": "lima-mysql-sandbox", "DB_PORT": "3306", "DB_NAME": "app", "DB_USER": "root", "MYSQL_HOST": "lima-mysql-sandbox", "MYSQL_PORT": "3306",
		"MYSQL_DATABASE": "app", "MYSQL_USER": "root", "MYSQL_PASSWORD": env["DB_PASSWORD"], "REDIS_HOST": "lima-redis-sandbox", "REDIS_PORT": "6379",
		"REDIS_URL": "redis://lima-redis-sandbox:6379/0", "PGHOST": "lima-postgres-sandbox", "PGPORT": "5432", "PGDATABASE": "app", "PGUSER": "postgres",
	} {
		if env[k] != want {
			t.Errorf("%s is %q, want %q", k, env[k], want)
		}
	}
	if len(env["DB_PASSWORD"]) < 20 || len(env["PGPASSWORD"]) < 20 || env["DB_PASSWORD"] == env["PGPASSWORD"] || len(env) != 18 {
		t.Errorf("variables: %v", env)
	}
	id := inst.InstanceID

	// From the guest itself, by name, with the variables that every command has.
	for what, c := range map[string]struct{ command, want string }{
		"redis":    {`exec 3<>/dev/tcp/$REDIS_HOST/$REDIS_PORT; printf 'PING\r\nQUIT\r\n' >&3; head -n 1 <&3`, "+PONG"},
		"mysql":    {`exec 3<>/dev/tcp/$DB_HOST/$DB_PORT; head -c 40 <&3 | tr -dc '[:print:]'`, "MariaDB"},
		"postgres": {`exec 3<>/dev/tcp/$PGHOST/$PGPORT; printf '\0\0\0\10\4\322\26\57' >&3; head -c 1 <&3`, "N"},
	} {
		if out := sv.output(t, id, "bash -c '"+strings.ReplaceAll(c.command, "'", `'\''`)+"'"); !strings.Contains(out, c.want) {
			t.Errorf("%s from the guest: %q", what, out)
		}
	}
	// From a container on the network, with the same variables.
	for what, c := range map[string]struct{ command, want string }{
		"redis":    {`docker run --rm --network lima-net-sandbox --entrypoint redis-cli redis:7-alpine -u "$REDIS_URL" incr x`, "1"},
		"mysql":    {`docker run --rm --network lima-net-sandbox -e MYSQL_PWD="$DB_PASSWORD" --entrypoint mysql mysql:8.0 -h "$DB_HOST" -P "$DB_PORT" -u "$DB_USER" -D "$DB_NAME" -N -e 'create table t (n int); insert into t values (41); select n+1 from t'`, "42"},
		"postgres": {`docker run --rm --network lima-net-sandbox -e PGHOST -e PGPORT -e PGUSER -e PGPASSWORD -e PGDATABASE --entrypoint psql postgres:16-alpine -tAc 'create table t as select 41 as n; select n+1 from t'`, "42"},
	} {
		if out := sv.output(t, id, c.command); !strings.Contains(out, c.want) {
			t.Errorf("%s from a container: %q", what, out)
		}
	}
	var task sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": id, "command": "echo $PGHOST"}, &task)
	var done sandbox.Task
	sv.must(t, "get_task_status", obj{"task_id": task.TaskID, "wait_seconds": 30}, &done)
	var logs sandbox.GetTaskLogsResult
	sv.must(t, "get_task_logs", obj{"task_id": task.TaskID, "stream": "stdout"}, &logs)
	if strings.TrimSpace(logs.Logs) != "lima-postgres-sandbox" {
		t.Errorf("a task has PGHOST %q", logs.Logs)
	}
	// Nobody is told the passwords who did not ask for them.
	for _, secret := range []string{env["DB_PASSWORD"], env["PGPASSWORD"]} {
		if strings.Contains(sv.log.String(), secret) {
			t.Error("a password is in the server's log")
		}
		sv.mu.Lock()
		if strings.Contains(strings.Join(sv.progress, "\n"), secret) {
			t.Error("a password is in the progress")
		}
		sv.mu.Unlock()
	}
}

// TestServicePasswordsRotate: a running server takes a new password, from then on
// only that one, and prepare_workspace finds out which is in force.
func TestServicePasswordsRotate(t *testing.T) {
	sv, inst := withServices(t)
	id := inst.InstanceID
	env := sv.prepare(t, id).ConnectionEnv
	list, err := services.Wanted(config.InfraConfig{
		MySQL:    config.ServiceConfig{Enabled: true, ContainerNamePrefix: "lima-mysql", Database: "app", Password: env["DB_PASSWORD"]},
		Postgres: config.ServiceConfig{Enabled: true, ContainerNamePrefix: "lima-postgres", Database: "app", Password: env["PGPASSWORD"]},
	})
	if err != nil {
		t.Fatal(err)
	}
	works := func(s services.Service, password string) bool {
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", obj{"instance_id": id, "timeout_seconds": 200, "command": map[string]string{
			"mysql":    "docker exec -e MYSQL_PWD=" + password + " lima-mysql-sandbox mysql -h lima-mysql-sandbox -u root -N -e 'select 42'",
			"postgres": "docker exec -e PGPASSWORD=" + password + " lima-postgres-sandbox psql -h lima-postgres-sandbox -U postgres -w -tAc 'select 42' app",
		}[s.Name]}, &r)
		return r.ExitCode == 0 && strings.TrimSpace(r.Stdout) == "42"
	}
	for _, s := range list {
		for _, to := range []string{"Rotated1", s.Password} {
			c, ok := s.Rotate(to)
			if !ok {
				t.Fatalf("%s cannot be given another password", s.Name)
			}
			args := []string{"docker", "exec"}
			for _, e := range c.Env {
				args = append(args, "-e", e)
			}
			command := ""
			for _, a := range append(append(args, s.Container), c.Argv...) {
				command += "'" + strings.ReplaceAll(a, "'", `'\''`) + "' "
			}
			sv.output(t, id, command)
			if !works(s, to) || works(s, s.Password) {
				t.Errorf("%s: the new password works: %v, the old one: %v", s.Name, works(s, to), works(s, s.Password))
			}
			s.Password = to
		}
	}
	if r := sv.prepare(t, id); r.ConnectionEnv["DB_PASSWORD"] != env["DB_PASSWORD"] || !r.ServiceReadiness["postgres"].Ready {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestServicesAreFoundAgain(t *testing.T) {
	sv, inst := withServices(t)
	id := inst.InstanceID
	first := sv.prepare(t, id)
	for name, s := range first.Services {
		if s.Status != "running" || !first.ServiceReadiness[name].Ready {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if first.ConnectionEnv["DB_PASSWORD"] != inst.Bootstrap.ConnectionEnv["DB_PASSWORD"] {
		t.Error("another password")
	}
	addresses := func() string {
		return sv.output(t, id, "for n in mysql redis postgres; do getent hosts lima-$n-sandbox; docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' lima-$n-sandbox; done")
	}
	before := addresses()
	sv.output(t, id, "docker stop -t 20 lima-redis-sandbox lima-postgres-sandbox")
	again := sv.prepare(t, id)
	if again.Services["redis"].Status != "started" || again.Services["postgres"].Status != "started" || again.Services["mysql"].Status != "running" {
		t.Errorf("after a stop: %+v", again.Services)
	}
	if after := addresses(); after != before {
		t.Errorf("addresses were\n%s and are\n%s", before, after)
	}
	// What is in the way is set aside, with its data.
	sv.output(t, id, "docker exec lima-redis-sandbox redis-cli set kept yes")
	sv.configure(t, allServices+"[infra.redis.extra_env]\nX='1'\n")
	changed := sv.prepare(t, id)
	if changed.Services["redis"].Status != "created" || changed.Services["mysql"].Status != "running" || len(changed.Warnings) != 1 || !strings.Contains(changed.Warnings[0], "lima-redis-sandbox-old-1") {
		t.Errorf("with another environment: %+v %v", changed.Services, changed.Warnings)
	}
	if out := sv.output(t, id, "docker inspect -f '{{.State.Status}}' lima-redis-sandbox-old-1; docker exec lima-redis-sandbox sh -c 'echo X=$X; redis-cli get kept'"); strings.TrimSpace(out) != "exited\nX=1" {
		t.Errorf("old and new: %q", out)
	}
	// One that is not ours is not touched.
	sv.output(t, id, "docker create --name mine-sandbox --entrypoint sleep redis:7-alpine 1")
	sv.configure(t, "[infra.redis]\ncontainer_name_prefix='mine'\n")
	e := sv.fails(t, fault.ServiceNotReady, "prepare_workspace", prepareArgs(id))
	if e.Details["service"] != "redis" || !strings.Contains(e.Message, "mine-sandbox") {
		t.Errorf("%+v", e)
	}
	if out := sv.output(t, id, "docker inspect -f '{{.State.Status}}' mine-sandbox; docker rm mine-sandbox"); !strings.HasPrefix(out, "created") {
		t.Errorf("the foreign container: %q", out)
	}
	// Two services of one name.
	sv.configure(t, "[infra.redis]\ncontainer_name_prefix='x'\n[infra.mysql]\ncontainer_name_prefix='x'\n")
	sv.fails(t, fault.WorkspaceConfigInvalid, "prepare_workspace", prepareArgs(id))
}

func TestServicesThatCannotRun(t *testing.T) {
	sv, inst := withServices(t)
	id := inst.InstanceID
	sv.output(t, id, `set -e; d=$(mktemp -d); cd $d
printf 'FROM redis:7-alpine\nENTRYPOINT ["sh","-c","echo warming up; echo $SECRET; exec sleep 3600"]\n' >Dockerfile; docker build -q -t never:1 .
printf 'FROM redis:7-alpine\nENTRYPOINT ["sh","-c","echo no such luck; exit 3"]\n' >Dockerfile; docker build -q -t crashes:1 .`)
	redis := func(image string) string {
		return "[infra.redis]\ncontainer_name_prefix='other'\nimage='" + image + "'\n"
	}
	sv.configure(t, redis("never:1"))
	late := sv.prepare(t, id, obj{"wait_for_ready": false, "service_timeout_seconds": 4})
	if r := late.ServiceReadiness["redis"]; r.Ready || r.Attempts == 0 || len(late.Warnings) != 1 || late.ConnectionEnv["REDIS_HOST"] != "other-sandbox" {
		t.Errorf("never ready, not waited for: %+v %v", r, late.Warnings)
	}
	e := sv.fails(t, fault.ServiceNotReady, "prepare_workspace", prepareArgs(id, obj{"service_timeout_seconds": 4}))
	if lines := fmt.Sprint(e.Details["last_log_lines"]); !strings.Contains(lines, "warming up") || e.Details["service"] != "redis" || e.Details["attempts"] == nil {
		t.Errorf("never ready: %+v", e)
	}
	sv.configure(t, redis("crashes:1"))
	e = sv.fails(t, fault.ServiceNotReady, "prepare_workspace", prepareArgs(id))
	if lines := fmt.Sprint(e.Details["last_log_lines"]); !strings.Contains(lines, "no such luck") || !strings.Contains(fmt.Sprint(e.Details["probable_cause"]), "exit code 3") {
		t.Errorf("crashing: %+v: %v", e, e.Details)
	}
	if out := sv.output(t, id, "docker inspect -f '{{.State.Status}}' other-sandbox; docker rm -f other-sandbox other-sandbox-old-1"); !strings.HasPrefix(out, "exited") {
		t.Errorf("it is %q", out)
	}
	sv.configure(t, redis("nowhere.invalid/no/such:1"))
	e = sv.fails(t, fault.ServiceNotReady, "prepare_workspace", prepareArgs(id))
	if e.Details["image"] != "nowhere.invalid/no/such:1" {
		t.Errorf("no such image: %+v", e)
	}
	// Services need a network.
	sv.configure(t, "[infra]\nensure_network=false\nnetwork_name='plain'\n[infra.redis]\ncontainer_name_prefix='netless'\n")
	e = sv.fails(t, fault.ServiceNotReady, "prepare_workspace", prepareArgs(id))
	if e.Details["network"] != "plain" {
		t.Errorf("no network: %+v", e)
	}
	sv.output(t, id, "docker network create plain")
	r := sv.prepare(t, id)
	if !r.ServiceReadiness["redis"].Ready || r.Network.Status != "existing" || r.Network.Name != "plain" {
		t.Errorf("on a network of somebody's own: %+v", r)
	}
	if out := sv.output(t, id, `bash -c 'exec 3<>/dev/tcp/$REDIS_HOST/$REDIS_PORT; printf "PING\r\nQUIT\r\n" >&3; head -n 1 <&3'`); !strings.Contains(out, "PONG") {
		t.Errorf("there: %q", out)
	}
	sv.output(t, id, "docker rm -f netless-sandbox; docker network rm plain")
	sv.configure(t, allServices)
	back := sv.prepare(t, id)
	if back.Services["redis"].Status == "" || !back.ServiceReadiness["redis"].Ready || back.ConnectionEnv["DB_PASSWORD"] != inst.Bootstrap.ConnectionEnv["DB_PASSWORD"] {
		t.Errorf("back again: %+v", back)
	}
}

func TestServicesInFiles(t *testing.T) {
	sv, inst := withServices(t)
	id := inst.InstanceID
	host := func() string {
		b, err := os.ReadFile(filepath.Join(sv.workspace, ".env"))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	down := func() sandbox.SyncFromInstanceResult {
		var r sandbox.SyncFromInstanceResult
		sv.must(t, "sync_instance_to_workspace", obj{"instance_id": id}, &r)
		for _, list := range [][]string{r.Created, r.Updated, r.Deleted} {
			for _, p := range list {
				if strings.Contains(host(), "sandboxforge") {
					t.Errorf("%s brought the block to the host", p)
				}
			}
		}
		if len(r.Conflicts)+len(r.Failed) != 0 {
			t.Errorf("down: %+v", r)
		}
		return r
	}
	up := func() {
		t.Helper()
		var r sandbox.SyncToInstanceResult
		sv.must(t, "sync_workspace_to_instance", obj{"instance_id": id}, &r)
		if r.Status != "ok" {
			t.Errorf("up: %+v", r)
		}
	}
	env := inst.Bootstrap.ConnectionEnv
	if in := inst.Bootstrap.EnvInjections; len(in) != 1 || in[0].Path != ".env" || len(in[0].Keys) != 18 {
		t.Errorf("injections: %+v", in)
	}
	reads := func() {
		t.Helper()
		if out := sv.output(t, id, "env -i sh -c '. ./.env; echo $DB_PASSWORD $PGPASSWORD $REDIS_URL'; stat -c %a .env"); !strings.HasPrefix(out, env["DB_PASSWORD"]+" "+env["PGPASSWORD"]+" "+env["REDIS_URL"]+"\n") {
			t.Errorf(".env in the guest reads %q", out)
		}
	}
	sv.prepare(t, id)
	reads()
	down()
	if !strings.Contains(host(), "no such file") {
		t.Errorf("the host has a .env: %q", host())
	}
	// The host makes one, and changes it.
	for _, text := range []string{"APP=1\nDB_HOST=mine\n", "APP=2\n"} {
		write(t, sv.workspace, ".env", text)
		up()
		reads()
		if out := sv.output(t, id, "grep APP .env"); out != strings.SplitAfter(text, "\n")[0] {
			t.Errorf("the guest has %q", out)
		}
		down()
		if host() != text {
			t.Errorf("the host has %q", host())
		}
	}
	// The guest changes what is not ours.
	sv.output(t, id, "sed -i s/APP=2/APP=3/ .env")
	down()
	if host() != "APP=3\n" {
		t.Errorf("the host has %q", host())
	}
	// The guest spreads a secret: it stays there.
	sv.output(t, id, "cp .env .env.saved; echo COPY=$DB_PASSWORD >.env")
	var leak sandbox.SyncFromInstanceResult
	sv.must(t, "sync_instance_to_workspace", obj{"instance_id": id, "dry_run": true}, &leak)
	if len(leak.Failed) != 1 || leak.Failed[0].Path != ".env" {
		t.Errorf("a secret outside the block: %+v", leak)
	}
	sv.output(t, id, "mv .env.saved .env")

	// On the host only if the operator says so.
	operator := filepath.Join(filepath.Dir(sv.home), ".config/sandboxforge-mcp")
	write(t, operator, "config.toml", "[infra]\ninject_env_on_host = true\n")
	defer os.RemoveAll(operator)
	sv.prepare(t, id)
	if h := host(); !strings.HasPrefix(h, "APP=3\n") || !strings.Contains(h, "PGPASSWORD="+env["PGPASSWORD"]) {
		t.Errorf("on the host: %q", h)
	}
	both := host()
	up()
	var r sandbox.SyncFromInstanceResult
	sv.must(t, "sync_instance_to_workspace", obj{"instance_id": id}, &r)
	if len(r.Created)+len(r.Updated)+len(r.Conflicts) != 0 || host() != both {
		t.Errorf("synced with blocks on both sides: %+v\n%s", r, host())
	}
	reads()
	if err := os.Rename(filepath.Join(sv.workspace, ".env"), filepath.Join(sv.workspace, "real")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(sv.workspace, ".env")); err != nil {
		t.Fatal(err)
	}
	sv.fails(t, fault.WorkspaceEnvInjectionFailed, "prepare_workspace", prepareArgs(id))
	for _, f := range []string{".env", "real"} {
		if err := os.Remove(filepath.Join(sv.workspace, f)); err != nil {
			t.Fatal(err)
		}
	}
	os.RemoveAll(operator)

	// Another file, and a value that no file can hold.
	sv.configure(t, "[infra.mysql]\ninject_env_to='config/db.env'\n[infra.redis]\ninject_env_to=''\n[infra.postgres]\n")
	moved := sv.prepare(t, id)
	if len(moved.EnvInjections) != 2 || moved.EnvInjections[0].Path != ".env" || moved.EnvInjections[1].Path != "config/db.env" {
		t.Errorf("injections: %+v", moved.EnvInjections)
	}
	if out := sv.output(t, id, "grep -c = .env config/db.env; ! grep REDIS .env config/db.env"); out != ".env:5\nconfig/db.env:10\n" {
		t.Errorf("the files have %q", out)
	}
	down()
	if _, err := os.Stat(filepath.Join(sv.workspace, "config")); err == nil {
		t.Error("the directory of the file is on the host")
	}
	sv.configure(t, allServices+"[infra.mysql.extra_env]\nMYSQL_ROOT_PASSWORD='two words'\n")
	e := sv.fails(t, fault.WorkspaceEnvInjectionFailed, "prepare_workspace", prepareArgs(id))
	if e.Details["key"] != "DB_PASSWORD" || strings.Contains(fmt.Sprint(e), "two words") {
		t.Errorf("%+v", e)
	}
	// Without services nothing is left of them but the containers.
	sv.configure(t, "[infra]\ninclude_services_by_default=false\n"+allServices)
	none := sv.prepare(t, id)
	if len(none.Services)+len(none.ConnectionEnv)+len(none.EnvInjections) != 0 {
		t.Errorf("%+v", none)
	}
	if out := sv.output(t, id, "ls -A; env | grep -c -e DB_ -e PG -e REDIS; grep -c lima /etc/hosts; docker ps -q | wc -l; true"); strings.Contains(out, ".env\n") || !strings.Contains(out, "\n0\n0\n3\n") {
		t.Errorf("left: %q", out)
	}
	sv.configure(t, allServices)
	if r := sv.prepare(t, id, obj{"include_services": false}); len(r.Services) != 0 {
		t.Errorf("include_services=false: %+v", r)
	}
	if r := sv.prepare(t, id); r.ConnectionEnv["DB_PASSWORD"] != env["DB_PASSWORD"] {
		t.Error("the password was forgotten with the variables")
	}
}

// TestEnvFileReaders holds every value that a file may get against the three
// programs that read it.
func TestEnvFileReaders(t *testing.T) {
	sv, inst := withServices(t)
	id := inst.InstanceID
	var vars []envfile.Var
	old, compose, script := "", "services:\n  a:\n    image: redis:7-alpine\n    env_file: [.env]\n  b:\n    image: redis:7-alpine\n    environment:\n", ". ./.env\n"
	for i, v := range envfile.Samples() {
		k := fmt.Sprintf("V%03d", i)
		vars = append(vars, envfile.Var{Key: k, Value: v})
		old += k + "=\"before\"\n"
		compose += fmt.Sprintf("      %s: \"${%s}\"\n", k, k)
		script += fmt.Sprintf("printf '%s=%%s\\n' \"$%s\"\n", k, k)
	}
	text, err := envfile.Inject([]byte(old), vars)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(sv.workspace, "readers")
	write(t, dir, ".env", string(text))
	write(t, dir, "compose.yaml", compose)
	write(t, dir, "read.sh", script)
	defer os.RemoveAll(dir)
	sv.must(t, "copy_to_instance", obj{"instance_id": id, "local_path": dir, "remote_path": "/tmp/readers"}, nil)
	check := func(who string, got map[string]string) {
		t.Helper()
		for _, v := range vars {
			if g, ok := got[v.Key]; !ok || g != v.Value {
				t.Errorf("%s reads %q as %q (there: %v)", who, v.Value, g, ok)
			}
		}
	}
	lines := func(out string) map[string]string {
		m := map[string]string{}
		for _, l := range strings.Split(out, "\n") {
			if k, v, ok := strings.Cut(l, "="); ok {
				m[k] = v
			}
		}
		return m
	}
	for _, shell := range []string{"dash", "bash"} {
		check(shell, lines(sv.output(t, id, "cd /tmp/readers && env -i "+shell+" read.sh")))
	}
	check("docker --env-file", lines(sv.output(t, id, "cd /tmp/readers && docker run --rm --env-file .env --entrypoint env redis:7-alpine")))
	var config struct {
		Services map[string]struct{ Environment map[string]string }
	}
	out := sv.output(t, id, "cd /tmp/readers && docker compose config --format json")
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		t.Fatalf("%v: %.300s", err, out)
	}
	check("compose's env_file", config.Services["a"].Environment)
	check("compose's .env", config.Services["b"].Environment)
}

// TestServicesOfTwoVMs: what is generated differs, in clones of one template, and
// is one for a VM that two servers prepare at once.
func TestServicesOfTwoVMs(t *testing.T) {
	sv, inst := withServices(t)
	other := newState(t)
	write(t, other.workspace, ".sandboxforge.toml", allServices)
	o, second := other.start(t), other.start(t)
	b := o.create(t, obj{"workspace_root": other.workspace, "auto_bootstrap": false, "overrides": obj{"vm": obj{"image": withStandins}}})
	args := prepareArgs(b.InstanceID, obj{"wait_for_ready": false, "service_timeout_seconds": 1})
	var r, r2 sandbox.PrepareWorkspaceResult
	ended := make(chan error, 1)
	go func() { ended <- second.call(t.Context(), "prepare_workspace", args, &r2) }()
	o.must(t, "prepare_workspace", args, &r)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(r.ConnectionEnv, r2.ConnectionEnv) {
		t.Errorf("one server says %v, the other %v", r.ConnectionEnv, r2.ConnectionEnv)
	}
	for _, k := range []string{"DB_PASSWORD", "PGPASSWORD"} {
		if r.ConnectionEnv[k] == "" || r.ConnectionEnv[k] == inst.Bootstrap.ConnectionEnv[k] {
			t.Errorf("%s is %q in both", k, r.ConnectionEnv[k])
		}
	}
	_ = sv
}

// TestPreloadedImagesAfterAColdBoot: prepare_workspace returns when they are in
// Docker, and their archives no longer take room.
func TestPreloadedImagesAfterAColdBoot(t *testing.T) {
	st := newState(t, "SANDBOX_TEMPLATES=off")
	buildStandins(t, st)
	sv := st.start(t)
	inst := sv.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true, "overrides": obj{"vm": obj{"image": withStandins}}})
	if inst.StartKind != "cold" {
		t.Errorf("a %s start", inst.StartKind)
	}
	out := sv.output(t, inst.InstanceID, "docker images --format '{{.Repository}}:{{.Tag}} {{.ID}}' --no-trunc | sort; sudo ls /var/lib/sandboxforge; sudo systemctl is-active sandboxforge-preload")
	text, err := st.cli("image", "inspect", withStandins, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Manifest struct {
			ContainerImages []struct{ Reference, ID string } `json:"container_images"`
		}
		Current bool
	}
	if err := json.Unmarshal(text, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.Manifest.ContainerImages) != len(standin.Names()) || !info.Current {
		t.Errorf("the image: %s", text)
	}
	for _, c := range info.Manifest.ContainerImages {
		if !strings.Contains(out, c.Reference+" "+c.ID) {
			t.Errorf("%s %s is not in Docker: %s", c.Reference, c.ID, out)
		}
	}
	if strings.Contains(out, "preload\n") || !strings.HasSuffix(out, "active\n") {
		t.Errorf("left: %s", out)
	}
}
