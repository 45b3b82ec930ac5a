package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
)

const preparedConfig = "[vm]\nimage = '" + withStandins + "'\n"

// preparedTemplates lists the keys of the templates that have services running.
func (s *state) preparedTemplates(t testing.TB) (keys []string) {
	t.Helper()
	out, err := s.cli("template", "list", "--json")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list sandbox.ListTemplatesResult
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, i := range list.Templates {
		if len(i.Services) > 0 {
			keys = append(keys, i.Key)
		}
	}
	return keys
}

// TestServicesRunWhenACreateReturns: with the template made, VMs have their
// services running from the start, each with passwords that no other has.
func TestServicesRunWhenACreateReturns(t *testing.T) {
	st := newState(t)
	buildStandins(t, st)
	warmServices(t, st)
	sv := st.start(t)
	var boxes [2]*sandbox.CreateInstanceResult
	for i := range boxes {
		began := time.Now()
		boxes[i] = sv.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true})
		t.Logf("create with services took %v: %v, bootstrap %v", time.Since(began), boxes[i].TimingsMS, boxes[i].Bootstrap.TimingsMS)
		b := boxes[i].Bootstrap
		if boxes[i].StartKind != "clone" || len(b.Warnings) > 0 {
			t.Errorf("start_kind %s, warnings %v", boxes[i].StartKind, b.Warnings)
		}
		for name, s := range b.Services {
			if s.Status != "running" || !b.ServiceReadiness[name].Ready {
				t.Errorf("%s: %+v %+v", name, s, b.ServiceReadiness[name])
			}
		}
		if len(b.Services) != 3 {
			t.Errorf("services: %+v", b.Services)
		}
	}
	seen := map[string]bool{}
	for _, b := range boxes {
		id, env := b.InstanceID, b.Bootstrap.ConnectionEnv
		for _, k := range []string{"DB_PASSWORD", "PGPASSWORD"} {
			if len(env[k]) < 20 || seen[env[k]] {
				t.Errorf("%s: not a password of its own: %v", k, env)
			}
			seen[env[k]] = true
		}
		// The new ones are in force, and those of the template are not.
		out := sv.output(t, id, `
my() { docker exec -e MYSQL_PWD="$1" lima-mysql-sandbox mysql --protocol=TCP -h 127.0.0.1 -u root -N -e 'select 40+2'; }
pg() { docker exec -e PGPASSWORD="$1" lima-postgres-sandbox psql -h lima-postgres-sandbox -U postgres -d app -tAc 'select 40+2'; }
old() { docker inspect -f '{{range .Config.Env}}{{println .}}{{end}}' "$1" | sed -n "s/^$2=//p"; }
echo "new: $(my "$DB_PASSWORD" 2>/dev/null) $(pg "$PGPASSWORD" 2>/dev/null)"
o=$(old lima-mysql-sandbox MYSQL_ROOT_PASSWORD); [ -n "$o" ] && [ "$o" != "$DB_PASSWORD" ] && echo "mysql: $(my "$o" 2>&1)"
o=$(old lima-postgres-sandbox POSTGRES_PASSWORD); [ -n "$o" ] && [ "$o" != "$PGPASSWORD" ] && echo "postgres: $(pg "$o" 2>&1)"
for h in $DB_HOST $REDIS_HOST $PGHOST; do getent hosts $h >/dev/null && echo known; done`)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if lines[0] != "new: 42 42" || !strings.Contains(out, "mysql: ") || !strings.Contains(out, "postgres: ") || strings.Count(out, "42") != 2 || strings.Count(out, "known") != 3 {
			t.Errorf("%s: %s", id, out)
		}
	}
	// The password stays when everything is looked at again, and when a
	// container begins anew.
	id, env := boxes[0].InstanceID, boxes[0].Bootstrap.ConnectionEnv
	sv.output(t, id, "docker restart -t 20 lima-mysql-sandbox lima-postgres-sandbox")
	again := sv.prepare(t, id)
	for _, k := range []string{"DB_PASSWORD", "PGPASSWORD"} {
		if again.ConnectionEnv[k] != env[k] {
			t.Errorf("%s has changed", k)
		}
	}
	for name, r := range again.ServiceReadiness {
		if !r.Ready || again.Services[name].Status != "running" {
			t.Errorf("after a restart: %s %+v %+v", name, r, again.Services[name])
		}
	}
}

// TestTemplateOfServicesIsMadeByItself: after services have run once, the next
// VM of their configuration begins with them running; not if that is switched
// off.
func TestTemplateOfServicesIsMadeByItself(t *testing.T) {
	st := newState(t)
	buildStandins(t, st)
	write(t, st.workspace, ".sandboxforge.toml", preparedConfig+fmt.Sprintf("[infra.redis]\ncontainer_name_prefix='r%x'\n", time.Now().UnixNano()))
	plain := st.start(t, "SANDBOX_TEMPLATES=plain")
	first := plain.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true})
	if s := first.Bootstrap.Services["redis"].Status; s != "created" {
		t.Errorf("redis is %s in the first VM", s)
	}
	plain.must(t, "destroy_instance", obj{"instance_id": first.InstanceID}, nil)
	before := st.preparedTemplates(t)

	sv := st.start(t)
	second := sv.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true})
	if s := second.Bootstrap.Services["redis"].Status; s != "created" {
		t.Errorf("redis is %s although no template was to be made", s)
	}
	for end := time.Now().Add(5 * time.Minute); len(st.preparedTemplates(t)) == len(before); {
		if time.Now().After(end) {
			t.Fatalf("no template was made: %s", lastBytes(sv.log.String(), 4000))
		}
		time.Sleep(time.Second) // another process publishes it
	}
	third := sv.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true})
	if s := third.Bootstrap.Services["redis"].Status; s != "running" {
		t.Errorf("redis is %s with the template made: %+v", s, third.Bootstrap)
	}
	// Without a bootstrap nobody would give it what is its own.
	fourth := sv.create(t, obj{"workspace_root": st.workspace, "auto_bootstrap": false})
	if out := sv.output(t, fourth.InstanceID, "docker ps -q"); out != "" {
		t.Errorf("something runs in a VM that was not bootstrapped: %s", out)
	}
	for _, i := range []*sandbox.CreateInstanceResult{second, third, fourth} {
		sv.must(t, "destroy_instance", obj{"instance_id": i.InstanceID}, nil)
	}
	for _, key := range st.preparedTemplates(t) {
		if !slices.Contains(before, key) {
			if out, err := st.cli("template", "rm", key); err != nil {
				t.Errorf("template rm: %v: %s", err, out)
			}
		}
	}
}
