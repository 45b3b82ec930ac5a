package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

// infra is the default configuration with all services enabled.
func infra() config.InfraConfig {
	c := func(name, image, database string) config.ServiceConfig {
		return config.ServiceConfig{Enabled: true, Image: image, Database: database, ContainerNamePrefix: "lima-" + name, ExtraEnv: map[string]string{}, InjectEnvTo: ".env"}
	}
	return config.InfraConfig{MySQL: c("mysql", "mysql:8.0", "app"), Redis: c("redis", "redis:7-alpine", ""), Postgres: c("postgres", "postgres:16-alpine", "app")}
}

func wanted(t *testing.T, c config.InfraConfig) []Service {
	t.Helper()
	list, err := Wanted(c)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func value(vars []Variable, key string) string {
	for _, v := range vars {
		if v.Key == key {
			return v.Value
		}
	}
	return ""
}

func TestWanted(t *testing.T) {
	list := wanted(t, infra())
	var names []string
	for _, s := range list {
		names = append(names, s.Name+" "+s.Container)
	}
	if got := strings.Join(names, ", "); got != "mysql lima-mysql-sandbox, redis lima-redis-sandbox, postgres lima-postgres-sandbox" {
		t.Error(got)
	}
	// Every key of the configuration has an effect, and reaches the variables.
	for name, c := range map[string]struct {
		set  func(*config.InfraConfig)
		want func(map[string]Service) bool
	}{
		"enabled": {func(c *config.InfraConfig) { c.MySQL.Enabled = false }, func(m map[string]Service) bool { _, ok := m["mysql"]; return !ok && len(m) == 2 }},
		"image":   {func(c *config.InfraConfig) { c.Redis.Image = "valkey:8" }, func(m map[string]Service) bool { return m["redis"].Image == "valkey:8" }},
		"database": {func(c *config.InfraConfig) { c.MySQL.Database = "shop" }, func(m map[string]Service) bool {
			return value(m["mysql"].Connection(), "DB_NAME") == "shop" && slices.Contains(m["mysql"].Env(), "MYSQL_DATABASE=shop")
		}},
		"postgres database": {func(c *config.InfraConfig) { c.Postgres.Database = "shop" }, func(m map[string]Service) bool {
			return value(m["postgres"].Connection(), "PGDATABASE") == "shop" && slices.Contains(m["postgres"].Env(), "POSTGRES_DB=shop")
		}},
		"root_password": {func(c *config.InfraConfig) { c.MySQL.Password = "pw" }, func(m map[string]Service) bool {
			return value(m["mysql"].Connection(), "MYSQL_PASSWORD") == "pw" && slices.Contains(m["mysql"].Env(), "MYSQL_ROOT_PASSWORD=pw")
		}},
		"password": {func(c *config.InfraConfig) { c.Postgres.Password = "pw" }, func(m map[string]Service) bool { return value(m["postgres"].Connection(), "PGPASSWORD") == "pw" }},
		"container_name_prefix": {func(c *config.InfraConfig) { c.Redis.ContainerNamePrefix = "cache" }, func(m map[string]Service) bool {
			return m["redis"].Container == "cache-sandbox" && value(m["redis"].Connection(), "REDIS_URL") == "redis://cache-sandbox:6379/0"
		}},
		"inject_env_to": {func(c *config.InfraConfig) { c.Redis.InjectEnvTo = "x/.env" }, func(m map[string]Service) bool { return m["redis"].InjectTo == "x/.env" }},
		"extra_env":     {func(c *config.InfraConfig) { c.Redis.ExtraEnv = map[string]string{"A": "1"} }, func(m map[string]Service) bool { return slices.Equal(m["redis"].Env(), []string{"A=1"}) }},
		"extra_env that names user and database": {func(c *config.InfraConfig) {
			c.Postgres.ExtraEnv = map[string]string{"POSTGRES_USER": "me", "POSTGRES_DB": "mine", "POSTGRES_PASSWORD": "pw"}
		}, func(m map[string]Service) bool {
			v := m["postgres"].Connection()
			return value(v, "PGUSER") == "me" && value(v, "PGDATABASE") == "mine" && value(v, "PGPASSWORD") == "pw"
		}},
	} {
		conf := infra()
		c.set(&conf)
		m := map[string]Service{}
		for _, s := range wanted(t, conf) {
			m[s.Name] = s
		}
		if !c.want(m) {
			t.Errorf("%s has no effect: %+v", name, m)
		}
	}
	same := infra()
	same.Redis.ContainerNamePrefix = "LIMA-mysql"
	if _, err := Wanted(same); !fault.Is(err, fault.WorkspaceConfigInvalid) {
		t.Errorf("two services of one name: %v", err)
	}
}

// start starts one service and waits for it.
func start(t *testing.T, p Place, s Service, known string) (Running, error) {
	t.Helper()
	r, err := p.Start(t.Context(), s, Known{Password: known})
	if err == nil {
		err = p.Await(t.Context(), &r, Wait{Deadline: time.Now().Add(time.Minute)})
	}
	return r, err
}

func TestLifeOfAService(t *testing.T) {
	f, p := newFake(t)
	conf := infra()
	pg := func() Service { return wanted(t, conf)[2] }
	check := func(what, status, known string) Running {
		t.Helper()
		r, err := start(t, p, pg(), known)
		if err != nil || r.Status != status || !r.Ready {
			t.Fatalf("%s: %+v, %v", what, r, err)
		}
		return r
	}
	first := check("new", StatusCreated, "")
	if len(first.Password) < 20 || first.Address != "10.87.0.30" || value(first.Connection(), "PGPASSWORD") != first.Password {
		t.Errorf("%+v", first)
	}
	if again := check("again", StatusRunning, ""); again.Password != first.Password {
		t.Error("another password")
	}
	if again := check("with a password that is not in force any more", StatusRunning, "stale"); again.Password != first.Password {
		t.Error("another password")
	}
	f.containers["lima-postgres-sandbox"].Status = "exited"
	if again := check("stopped", StatusStarted, ""); again.Password != first.Password || again.Address != first.Address {
		t.Error("another password or address")
	}
	for n, change := range []func(){
		func() { f.images["postgres:16-alpine"] = "sha256:p2" },
		func() { conf.Postgres.ExtraEnv["A"] = "1" },
		func() { conf.Postgres.Database = "shop" },
		func() { conf.Postgres.Password = "configured" },
	} {
		change()
		old := f.containers["lima-postgres-sandbox"]
		r := check(fmt.Sprintf("change %d", n), StatusCreated, first.Password)
		if name := fmt.Sprintf("lima-postgres-sandbox-old-%d", n+1); !strings.Contains(r.Warning, name) || f.containers[name] != old || old.Status != "exited" || len(old.Networks) != 0 {
			t.Errorf("change %d: %q, %+v", n, r.Warning, old)
		}
		if r.Address != first.Address {
			t.Errorf("change %d: address %s", n, r.Address)
		}
	}
	if r := check("configured", StatusRunning, ""); r.Password != "configured" {
		t.Errorf("password %s", r.Password)
	}
	if slices.ContainsFunc(f.calls, func(c string) bool { return strings.Contains(c, "images/create") }) {
		t.Error("an image that is there was fetched")
	}
}

// TestPasswordThatWasRotated: the one that the caller knows is in force, not
// that of the container's environment.
func TestPasswordThatWasRotated(t *testing.T) {
	f, p := newFake(t)
	s := wanted(t, infra())[0]
	if _, err := start(t, p, s, ""); err != nil {
		t.Fatal(err)
	}
	f.exec = func(_ *fakeContainer, _, env []string) (int, string, string) {
		if slices.Contains(env, "MYSQL_PWD=Rotated1") {
			return 0, "1\n", ""
		}
		return 1, "", "Access denied"
	}
	r, err := start(t, p, s, "Rotated1")
	if err != nil || r.Password != "Rotated1" || value(r.Connection(), "DB_PASSWORD") != "Rotated1" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestFreshPassword: a server that runs because others began where it does is
// given a password of its own by one query, which shows that it is ready; one
// that does not obey is not taken for ready, and is tried again.
func TestFreshPassword(t *testing.T) {
	f, p := newFake(t)
	s := wanted(t, infra())[0]
	first, err := start(t, p, s, "")
	if err != nil {
		t.Fatal(err)
	}
	inForce, refuse := first.Password, true
	f.exec = func(_ *fakeContainer, argv, env []string) (int, string, string) {
		if refuse || !slices.Contains(env, "MYSQL_PWD="+inForce) {
			return 1, "", "Access denied with " + strings.Join(env, " ")
		}
		if i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "SANDBOXFORGE_NEW=") }); i >= 0 {
			inForce = strings.TrimPrefix(env[i], "SANDBOXFORGE_NEW=")
			return 0, "", ""
		}
		return 0, "1\n", ""
	}
	r, err := p.Start(t.Context(), s, Known{Password: "Fresh1", Fresh: true})
	if err != nil || r.Status != StatusRunning || r.Password != first.Password {
		t.Fatalf("%+v, %v", r, err)
	}
	err = p.Adopt(t.Context(), &r, "Fresh1")
	if err == nil || r.Ready || strings.Contains(err.Error(), "Fresh1") || strings.Contains(err.Error(), first.Password) {
		t.Errorf("a server that refuses: ready %v, %v", r.Ready, err)
	}
	refuse = false
	before := len(f.execs)
	if err := p.Adopt(t.Context(), &r, "Fresh1"); err != nil || !r.Ready || r.Attempts == 0 || r.Password != "Fresh1" || inForce != "Fresh1" {
		t.Errorf("%+v, %v", r, err)
	}
	if n := len(f.execs) - before; n != 1 {
		t.Errorf("%d queries", n)
	}
	// A caller that died after it recorded the password and before it was so.
	inForce = first.Password
	again, err := start(t, p, s, "Fresh1")
	if err != nil || again.Password != first.Password {
		t.Errorf("%+v, %v", again, err)
	}
	if err := p.Adopt(t.Context(), &again, "Fresh1"); err != nil || inForce != "Fresh1" {
		t.Errorf("%v, in force is %q", err, inForce)
	}
}

func TestRotate(t *testing.T) {
	for _, s := range wanted(t, infra()) {
		c, ok := s.Rotate("Abc123")
		if ok != s.HasPassword() {
			t.Errorf("%s: %v", s.Name, ok)
		}
		if ok && (strings.Contains(strings.Join(c.Argv, " "), "Abc123") || !slices.Contains(c.Env, "SANDBOXFORGE_NEW=Abc123")) {
			t.Errorf("%s: the password is in the command line, or nowhere: %v", s.Name, c)
		}
		if _, ok := s.Rotate("a'b"); ok {
			t.Errorf("%s: a password that needs quotes was taken", s.Name)
		}
	}
}

// TestTwoOfAKind: one whose name is configured otherwise goes on, and the new
// one has an address of its own.
func TestTwoOfAKind(t *testing.T) {
	f, p := newFake(t)
	conf := infra()
	seen := map[string]bool{}
	for i := range perKind + 1 {
		conf.Redis.ContainerNamePrefix = fmt.Sprintf("cache%d", i)
		r, err := start(t, p, wanted(t, conf)[1], "")
		if err != nil || seen[r.Address] || (r.Address == "") != (i == perKind) {
			t.Fatalf("%d: address %q, %v", i, r.Address, err)
		}
		seen[r.Address] = true
	}
	if len(f.containers) != perKind+1 {
		t.Errorf("%d containers", len(f.containers))
	}
}

func TestTwoProcessesStartOneService(t *testing.T) {
	f, p := newFake(t)
	s, theirs := wanted(t, infra())[0], NewPassword()
	// While this one is about to make it, the other has.
	f.create = func(name string) {
		f.create = nil
		f.containers[name] = &fakeContainer{Name: name, Image: "sha256:m1", Status: "running", Env: []string{"MYSQL_ROOT_PASSWORD=" + theirs},
			Labels: map[string]string{labelService: "mysql", labelSpec: s.spec("sha256:m1")}, Networks: map[string]string{"net": "10.87.0.10"}, address: "x"}
	}
	r, err := start(t, p, s, "")
	if err != nil || r.Password != theirs || r.Status != StatusRunning {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestPasswordsThatAGuestMakesUp: what a container's environment says goes into
// records and files of the host, so only what can be a generated password does.
func TestPasswordsThatAGuestMakesUp(t *testing.T) {
	for _, env := range [][]string{nil, {"MYSQL_ROOT_PASSWORD="}, {"MYSQL_ROOT_PASSWORD=e"}, {"MYSQL_ROOT_PASSWORD=" + strings.Repeat("A", 1<<20)}, {"MYSQL_ROOT_PASSWORD=AAAAAAAAAAAAAAAA\nPATH=/tmp"}} {
		f, p := newFake(t)
		s := wanted(t, infra())[0]
		f.containers[s.Container] = &fakeContainer{Name: s.Container, Image: "sha256:m1", Status: "running", Env: env,
			Labels: map[string]string{labelService: "mysql", labelSpec: s.spec("sha256:m1")}, Networks: map[string]string{"net": "10.87.0.10"}, address: "x"}
		r, err := start(t, p, s, "")
		if err != nil || !generated(r.Password) || r.Status != StatusCreated || f.containers[s.Container+"-old-1"] == nil {
			t.Errorf("%.60q: password %.60q, %s, %v", env, r.Password, r.Status, err)
		}
	}
	// One that was configured is what it was configured to be.
	f, p := newFake(t)
	conf := infra()
	conf.MySQL.Password = "pw"
	s := wanted(t, conf)[0]
	if _, err := start(t, p, s, ""); err != nil {
		t.Fatal(err)
	}
	f.containers[s.Container].Env = []string{"MYSQL_ROOT_PASSWORD=other"}
	if r, err := p.Start(t.Context(), s, Known{}); err != nil || r.Password != "pw" {
		t.Errorf("%q, %v", r.Password, err)
	}
}

// TestAContainerThatComesBack: an engine that says that it has renamed a
// container, and has not, comes to an end.
func TestAContainerThatComesBack(t *testing.T) {
	f, p := newFake(t)
	s := wanted(t, infra())[0]
	f.containers[s.Container] = &fakeContainer{Name: s.Container, Image: "sha256:other", Status: "running",
		Labels: map[string]string{labelService: "mysql"}, Networks: map[string]string{}, address: "x"}
	f.sticky = true
	if _, err := p.Start(t.Context(), s, Known{}); !fault.Is(err, fault.ServiceNotReady) || !strings.Contains(err.Error(), "cannot be set aside") {
		t.Errorf("error %v", err)
	}
}

func TestServicesThatDoNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(*fakeDocker)
		code fault.Code
		says string
	}{
		"a foreign container": {func(f *fakeDocker) {
			f.containers["lima-mysql-sandbox"] = &fakeContainer{Name: "lima-mysql-sandbox", Status: "running", address: "x"}
		}, fault.ServiceNotReady, "not the sandbox's own"},
		"no such image":    {func(f *fakeDocker) { delete(f.images, "mysql:8.0") }, fault.ServiceNotReady, "cannot be fetched"},
		"it never listens": {func(f *fakeDocker) { f.port = false }, fault.ServiceNotReady, "did not answer"},
		"it refuses everybody": {func(f *fakeDocker) {
			f.exec = func(*fakeContainer, []string, []string) (int, string, string) { return 1, "", "no entry" }
		}, fault.ServiceNotReady, "did not answer"},
		"it answers nonsense": {func(f *fakeDocker) {
			f.exec = func(*fakeContainer, []string, []string) (int, string, string) { return 0, "2\n", "" }
		}, fault.ServiceNotReady, "did not answer"},
		"it repeats its secret": {func(f *fakeDocker) {
			f.exec = func(_ *fakeContainer, _, env []string) (int, string, string) { return 1, "", strings.Join(env, " ") }
		}, fault.ServiceNotReady, "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newFake(t)
			c.harm(f)
			s := wanted(t, infra())[0]
			r, err := p.Start(t.Context(), s, Known{})
			if err == nil {
				f.mu.Lock()
				f.containers[s.Container].Log = "line one\nroot password is " + r.Password + "\n"
				f.mu.Unlock()
				err = p.Await(t.Context(), &r, Wait{Deadline: time.Now().Add(300 * time.Millisecond)})
			}
			got := fault.From(err)
			if got == nil || got.Code != c.code || !strings.Contains(got.Message, c.says) || got.Details["service"] != "mysql" || len(got.DetailMap()["next_steps"].([]string)) == 0 {
				t.Fatalf("%+v", got)
			}
			text := fmt.Sprint(got.DetailMap(), got.Error())
			if r.Password != "" && strings.Contains(text, r.Password) {
				t.Errorf("the password is in it: %s", text)
			}
			if r.Password != "" && !strings.Contains(text, "root password is ********") {
				t.Errorf("the log is not in it: %s", text)
			}
		})
	}
}

func TestContainerThatCannotBeStarted(t *testing.T) {
	f, p := newFake(t)
	s := wanted(t, infra())[1]
	if _, err := start(t, p, s, ""); err != nil {
		t.Fatal(err)
	}
	c := f.containers[s.Container]
	c.Status, c.refuse = "exited", "address already in use"
	_, err := p.Start(t.Context(), s, Known{})
	if got := fault.From(err); got == nil || got.Code != fault.ServiceNotReady || got.Cause == "" || !strings.Contains(got.Cause, "address already in use") {
		t.Errorf("%+v", got)
	}
}

func TestServerThatKeepsEnding(t *testing.T) {
	f, p := newFake(t)
	s := wanted(t, infra())[1]
	r, err := p.Start(t.Context(), s, Known{})
	if err != nil {
		t.Fatal(err)
	}
	c := f.containers[s.Container]
	c.Status, c.Restarts, c.ExitCode = "restarting", crashes, 3
	err = p.Await(t.Context(), &r, Wait{Deadline: time.Now().Add(time.Hour), Extend: true})
	if got := fault.From(err); got == nil || !strings.Contains(got.Cause, "exit code 3") {
		t.Fatalf("%v", err)
	}
	if c.Status != "exited" {
		t.Errorf("it goes on: %s", c.Status)
	}
}

// TestExtendedWait: a server that shows that it works gets more time, one that
// does not gets none.
func TestExtendedWait(t *testing.T) {
	s := newSigns(time.Unix(100, 0))
	f, p := newFake(t)
	r, err := p.Start(t.Context(), wanted(t, infra())[1], Known{})
	if err != nil {
		t.Fatal(err)
	}
	c := f.containers[r.Container]
	c.Log = "first"
	for i, step := range []struct {
		log  string
		sign bool
	}{{"first", true}, {"first", false}, {"second", true}, {"second", false}} {
		now := time.Unix(int64(110+10*i), 0)
		c.Log = step.log
		p.look(t.Context(), &r, s, now)
		if got := s.last.Equal(now); got != step.sign {
			t.Errorf("look %d: a sign of work: %v", i, got)
		}
	}
}

func TestHosts(t *testing.T) {
	const base = "127.0.0.1 localhost\n"
	one := Hosts(base, []string{"db"}, []string{"10.0.0.1"})
	if want := base + hostsBegin + "\n10.0.0.1 db\n" + hostsEnd + "\n"; one != want {
		t.Errorf("%q", one)
	}
	two := Hosts(one+"10.9.9.9 mine\n", []string{"db", "cache"}, []string{"10.0.0.2", "10.0.0.3"})
	if !strings.HasPrefix(two, base+"10.9.9.9 mine\n") || strings.Count(two, hostsBegin) != 1 || strings.Contains(two, "10.0.0.1") {
		t.Errorf("%q", two)
	}
	if none := Hosts(two, nil, nil); none != base+"10.9.9.9 mine\n" {
		t.Errorf("%q", none)
	}
	if got := Hosts("x", []string{"db"}, []string{""}); got != "x\n"+hostsBegin+"\n"+hostsEnd+"\n" {
		t.Errorf("%q", got)
	}
}
