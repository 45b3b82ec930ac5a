package services

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandboxforge/internal/docker"
)

// fakeDocker is as much of an engine as the package asks for.
type fakeDocker struct {
	mu         sync.Mutex
	images     map[string]string // reference to id
	registry   map[string]string // what can be fetched
	containers map[string]*fakeContainer
	network    docker.Network
	calls      []string
	// exec answers a command in a container.
	exec func(c *fakeContainer, argv, env []string) (code int, stdout, stderr string)
	// create, if set, goes before a container is made.
	create func(name string)
	execs  map[string][3]string
	port   bool // something listens
	sticky bool // a rename is answered and not done
}

type fakeContainer struct {
	Name, Image, Status string
	Env                 []string
	Labels              map[string]string
	Networks            map[string]string
	Restarts, ExitCode  int
	Log                 string
	address             string
	refuse              string // why it cannot be started
}

func newFake(t *testing.T) (*fakeDocker, Place) {
	t.Helper()
	f := &fakeDocker{
		images: map[string]string{"mysql:8.0": "sha256:m1", "redis:7-alpine": "sha256:r1", "postgres:16-alpine": "sha256:p1"}, registry: map[string]string{},
		containers: map[string]*fakeContainer{}, execs: map[string][3]string{}, port: true,
	}
	f.exec = func(c *fakeContainer, argv, env []string) (int, string, string) {
		if strings.Contains(strings.Join(argv, " "), "ping") {
			return 0, "PONG\n", ""
		}
		for _, e := range c.Env {
			if _, pw, ok := strings.Cut(e, "PASSWORD="); ok && slices.ContainsFunc(env, func(v string) bool { return strings.HasSuffix(v, "="+pw) }) {
				return 0, "1\n", ""
			}
		}
		return 1, "", "Access denied"
	}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	e := docker.NewEngine(func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	})
	t.Cleanup(e.Close)
	if _, err := e.EnsureNetwork(t.Context(), "net"); err != nil {
		t.Fatal(err)
	}
	n, err := e.Network(t.Context(), "net")
	if err != nil {
		t.Fatal(err)
	}
	return f, Place{Engine: e, Network: n, Dial: func(context.Context, string, string) (net.Conn, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.port {
			return nil, fmt.Errorf("refused")
		}
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}}
}

func (f *fakeDocker) container(key string) *fakeContainer {
	for name, c := range f.containers {
		if name == key || "id-"+c.address == key {
			return c
		}
	}
	return nil
}

func (f *fakeDocker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reply := func(v any) { json.NewEncoder(w).Encode(v) } //nolint:errcheck // a test's client
	refuse := func(code int, text string) {
		w.WriteHeader(code)
		reply(map[string]string{"message": text})
	}
	var in struct {
		Image      string
		Env        []string
		Cmd        []string
		Labels     map[string]string
		Container  string
		IPAM       struct{ Config []struct{ Subnet string } }
		HostConfig struct {
			RestartPolicy struct{ Name string }
		}
		NetworkingConfig struct {
			EndpointsConfig map[string]struct{ IPAMConfig struct{ IPv4Address string } }
		}
		EndpointConfig struct{ IPAMConfig struct{ IPv4Address string } }
	}
	if r.Body != nil {
		json.NewDecoder(r.Body).Decode(&in) //nolint:errcheck // nothing in it is as good
	}
	p := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := p[len(p)-1]
	if r.Method != http.MethodGet {
		f.calls = append(f.calls, strings.TrimPrefix(r.URL.Path, "/"))
	}
	switch {
	case p[0] == "images" && last == "json":
		ref := strings.Join(p[1:len(p)-1], "/")
		if id := f.images[ref]; id != "" {
			reply(map[string]any{"Id": id})
			return
		}
		refuse(404, "No such image: "+ref)
	case p[0] == "images":
		ref := r.URL.Query().Get("fromImage") + ":" + r.URL.Query().Get("tag")
		if id := f.registry[ref]; id != "" {
			f.images[ref] = id
			reply(map[string]any{"status": "Pulled"})
			return
		}
		reply(map[string]any{"error": "manifest for " + ref + " not found"})
	case p[0] == "networks" && last == "create":
		f.network = docker.Network{Name: "net", Labels: in.Labels}
		reply(map[string]any{"Id": in.IPAM.Config[0].Subnet})
	case p[0] == "networks" && r.Method == http.MethodGet:
		if f.network.Name == "" {
			refuse(404, "no such network")
			return
		}
		reply(map[string]any{"Id": "n", "Name": "net", "Labels": f.network.Labels, "IPAM": map[string]any{"Config": []any{map[string]any{"Subnet": "10.87.0.0/24"}}}})
	case p[0] == "networks":
		c := f.container(in.Container)
		if last == "connect" {
			c.Networks[p[1]] = in.EndpointConfig.IPAMConfig.IPv4Address
		} else {
			delete(c.Networks, p[1])
		}
	case last == "create":
		name := r.URL.Query().Get("name")
		if f.create != nil {
			f.create(name)
		}
		if f.containers[name] != nil {
			refuse(409, "Conflict. The container name is already in use")
			return
		}
		c := &fakeContainer{Name: name, Image: f.images[in.Image], Status: "created", Env: in.Env, Labels: in.Labels, Networks: map[string]string{}, address: fmt.Sprint(len(f.containers))}
		for n, e := range in.NetworkingConfig.EndpointsConfig {
			c.Networks[n] = e.IPAMConfig.IPv4Address
		}
		f.containers[name] = c
		reply(map[string]any{"Id": "id-" + c.address})
	case p[0] == "exec" && last == "start":
		x := f.execs[p[1]]
		for i, text := range x[1:] {
			if text != "" {
				h := make([]byte, 8)
				h[0] = byte(i + 1)
				binary.BigEndian.PutUint32(h[4:], uint32(len(text)))
				w.Write(append(h, text...)) //nolint:errcheck // a test's client
			}
		}
	case p[0] == "exec":
		var code int
		fmt.Sscan(f.execs[p[1]][0], &code)
		reply(map[string]any{"ExitCode": code})
	case p[0] == "containers" && len(p) == 2:
		list := []any{}
		for _, c := range f.containers {
			if c.Labels[labelService] != "" && strings.Contains(r.URL.Query().Get("filters"), labelService+"="+c.Labels[labelService]) {
				list = append(list, map[string]any{"Id": "id-" + c.address})
			}
		}
		reply(list)
	case p[0] == "containers":
		c := f.container(p[1])
		if c == nil {
			refuse(404, "No such container: "+p[1])
			return
		}
		switch last {
		case "json":
			nets := map[string]any{}
			for n, a := range c.Networks {
				nets[n] = map[string]any{"IPAddress": a, "IPAMConfig": map[string]string{"IPv4Address": a}}
			}
			reply(map[string]any{
				"Id": "id-" + c.address, "Name": "/" + c.Name, "Image": c.Image, "RestartCount": c.Restarts,
				"State":  map[string]any{"Status": c.Status, "ExitCode": c.ExitCode},
				"Config": map[string]any{"Env": c.Env, "Labels": c.Labels}, "NetworkSettings": map[string]any{"Networks": nets},
			})
		case "start":
			if c.refuse != "" {
				refuse(500, c.refuse)
				return
			}
			c.Status = "running"
		case "stop":
			c.Status = "exited"
		case "rename":
			if f.sticky {
				return
			}
			to := r.URL.Query().Get("name")
			delete(f.containers, c.Name)
			c.Name = to
			f.containers[to] = c
		case "logs":
			h := make([]byte, 8)
			h[0] = 1
			binary.BigEndian.PutUint32(h[4:], uint32(len(c.Log)))
			w.Write(append(h, c.Log...)) //nolint:errcheck // a test's client
		case "exec":
			id := fmt.Sprint(len(f.execs))
			code, out, errs := f.exec(c, in.Cmd, in.Env)
			f.execs[id] = [3]string{fmt.Sprint(code), out, errs}
			reply(map[string]any{"Id": id})
		default:
			refuse(404, "not known to the fake: "+r.URL.Path)
		}
	default:
		refuse(404, "not known to the fake: "+r.URL.Path)
	}
}
