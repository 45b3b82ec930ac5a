package docker

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Container is a row of the engine's list.
type Container struct {
	ID       string
	Name     string
	Image    string // as it was named when the container was made
	ImageID  string
	Command  string
	State    string // created, running, paused, restarting, exited, dead
	Status   string // for people, such as "Up 3 minutes"
	Created  time.Time
	Ports    []string
	Labels   map[string]string
	Networks []string
}

// Containers lists the running containers, or all, that have every label
// ("key" or "key=value"), newest first.
func (e *Engine) Containers(ctx context.Context, all bool, labels ...string) ([]Container, error) {
	var rows bounded[struct {
		ID      string `json:"Id"`
		Names   []string
		Image   string
		ImageID string
		Command string
		State   string
		Status  string
		Created int64
		Labels  map[string]string
		Ports   []struct {
			IP          string
			PrivatePort uint16
			PublicPort  uint16
			Type        string
		}
		NetworkSettings struct {
			Networks map[string]struct{}
		}
	}]
	q := url.Values{"filters": {labelFilter(labels)}}
	if all {
		q.Set("all", "1")
	}
	if err := e.do(ctx, http.MethodGet, "/containers/json?"+q.Encode(), nil, &rows); err != nil {
		return nil, err
	}
	list := make([]Container, 0, len(rows))
	for _, r := range rows {
		c := Container{
			ID: r.ID, Image: r.Image, ImageID: r.ImageID, Command: r.Command, State: r.State, Status: r.Status,
			Created: time.Unix(r.Created, 0).UTC(), Ports: []string{}, Labels: r.Labels, Networks: []string{},
		}
		if len(r.Names) > 0 {
			c.Name = strings.TrimPrefix(r.Names[0], "/")
		}
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		for _, p := range r.Ports {
			s := strconv.Itoa(int(p.PrivatePort)) + "/" + p.Type
			if p.PublicPort != 0 {
				ip := p.IP
				if strings.Contains(ip, ":") {
					ip = "[" + ip + "]"
				}
				s = ip + ":" + strconv.Itoa(int(p.PublicPort)) + "->" + s
			}
			c.Ports = append(c.Ports, s)
		}
		for n := range r.NetworkSettings.Networks {
			c.Networks = append(c.Networks, n)
		}
		slices.Sort(c.Networks)
		list = append(list, c)
	}
	return list, nil
}

// ContainerDetail is one container as the engine describes it.
type ContainerDetail struct {
	ID        string
	Name      string // without the leading slash
	ImageID   string
	Image     string // as it was named when the container was made
	Status    string // created, running, paused, restarting, exited, dead
	ExitCode  int
	Error     string    // why it could not be started
	StartedAt time.Time // zero if it never was
	TTY       bool      // its output is one stream
	Restarts  int       // by the engine, since it was last started by somebody
	Env       []string
	Labels    map[string]string
	Addresses map[string]string // network to IPv4 address, without those that are none
	Fixed     map[string]string // network to the address that was asked for, also of a stopped one
	Networks  []string
}

// Running reports whether the container's process runs.
func (c ContainerDetail) Running() bool { return c.Status == "running" }

// Container describes the container with a name or an id. A missing one is
// ErrNotFound.
func (e *Engine) Container(ctx context.Context, name string) (ContainerDetail, error) {
	var r struct {
		ID           string `json:"Id"`
		Name         string
		Image        string
		RestartCount int
		State        struct {
			Status    string
			ExitCode  int
			Error     string
			StartedAt time.Time
		}
		Config struct {
			Image  string
			Tty    bool
			Env    []string
			Labels map[string]string
		}
		NetworkSettings struct {
			Networks map[string]struct {
				IPAddress  string
				IPAMConfig struct{ IPv4Address string }
			}
		}
	}
	if err := e.do(ctx, http.MethodGet, "/containers/"+url.PathEscape(name)+"/json", nil, &r); err != nil {
		return ContainerDetail{}, err
	}
	c := ContainerDetail{
		ID: r.ID, Name: strings.TrimPrefix(r.Name, "/"), ImageID: r.Image, Image: r.Config.Image, Status: r.State.Status,
		ExitCode: r.State.ExitCode, Error: r.State.Error, TTY: r.Config.Tty, Env: r.Config.Env, Labels: r.Config.Labels,
		Restarts: r.RestartCount, Addresses: map[string]string{}, Fixed: map[string]string{},
	}
	if r.State.StartedAt.Year() > 1 {
		c.StartedAt = r.State.StartedAt
	}
	for n, a := range r.NetworkSettings.Networks {
		c.Networks = append(c.Networks, n)
		if ip, err := netip.ParseAddr(a.IPAddress); err == nil && ip.Is4() {
			c.Addresses[n] = ip.String()
		}
		c.Fixed[n] = a.IPAMConfig.IPv4Address
	}
	slices.Sort(c.Networks)
	return c, nil
}

// NewContainer says what to make.
type NewContainer struct {
	Name    string
	Image   string // reference or id; it must be there
	Env     []string
	Labels  map[string]string
	Network string // "" for the default one
	Address string // IPv4 in Network, "" for any
	// Restart has the container come back when it or the engine ends, until
	// somebody stops it.
	Restart bool
}

// CreateContainer makes a container and does not start it.
func (e *Engine) CreateContainer(ctx context.Context, n NewContainer) (id string, err error) {
	in := map[string]any{"Image": n.Image, "Env": n.Env, "Labels": n.Labels, "Hostname": n.Name}
	host := map[string]any{}
	if n.Restart {
		host["RestartPolicy"] = map[string]any{"Name": "unless-stopped"}
	}
	if n.Network != "" {
		host["NetworkMode"] = n.Network
		end := map[string]any{}
		if n.Address != "" {
			end["IPAMConfig"] = map[string]any{"IPv4Address": n.Address}
		}
		in["NetworkingConfig"] = map[string]any{"EndpointsConfig": map[string]any{n.Network: end}}
	}
	in["HostConfig"] = host
	var out struct {
		ID string `json:"Id"`
	}
	err = e.do(ctx, http.MethodPost, "/containers/create?name="+url.QueryEscape(n.Name), in, &out)
	return out.ID, err
}

// StartContainer starts a container; one that runs is success.
func (e *Engine) StartContainer(ctx context.Context, name string) error {
	return e.do(ctx, http.MethodPost, "/containers/"+url.PathEscape(name)+"/start", nil, nil)
}

// StopContainer ends a container: its stop signal, and after grace KILL. One
// that does not run is success.
func (e *Engine) StopContainer(ctx context.Context, name string, grace time.Duration) error {
	return e.do(ctx, http.MethodPost, "/containers/"+url.PathEscape(name)+"/stop?t="+strconv.Itoa(int(grace.Seconds())), nil, nil)
}

// RenameContainer gives a container another name.
func (e *Engine) RenameContainer(ctx context.Context, name, to string) error {
	return e.do(ctx, http.MethodPost, "/containers/"+url.PathEscape(name)+"/rename?name="+url.QueryEscape(to), nil, nil)
}

// RemoveContainer kills and removes a container and its anonymous volumes.
func (e *Engine) RemoveContainer(ctx context.Context, name string) error {
	return e.do(ctx, http.MethodDelete, "/containers/"+url.PathEscape(name)+"?force=1&v=1", nil, nil)
}

// labelFilter is the filters parameter that asks for labels.
func labelFilter(labels []string) string {
	if len(labels) == 0 {
		return "{}"
	}
	return encode(map[string][]string{"label": labels})
}
