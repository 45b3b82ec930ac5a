package docker

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Labels that Compose puts on its containers.
const (
	LabelProject = "com.docker.compose.project"
	LabelService = "com.docker.compose.service"
)

// Project is what `docker compose config` says of a project.
type Project struct {
	Name     string
	Services map[string]ProjectService
}

// ProjectService is a service as far as its networks go.
type ProjectService struct {
	// NetworkMode other than "" takes the service out of every network.
	NetworkMode string
	Networks    []string
}

// ParseProject reads the resolved configuration of a project. It comes from
// the guest: only names and networks are taken from it.
func ParseProject(text []byte) (Project, error) {
	var in struct {
		Name     string `json:"name"`
		Services map[string]struct {
			NetworkMode string                     `json:"network_mode"`
			Networks    map[string]json.RawMessage `json:"networks"`
		} `json:"services"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return Project{}, fmt.Errorf("the configuration that Compose printed is not understood: %w", err)
	}
	p := Project{Name: in.Name, Services: map[string]ProjectService{}}
	for name, s := range in.Services {
		p.Services[name] = ProjectService{NetworkMode: s.NetworkMode, Networks: slices.Sorted(maps.Keys(s.Networks))}
	}
	return p, nil
}

// bridgeKey names the instance's network inside a project: no user's file has
// this name by chance.
const bridgeKey = "sandboxforge-instance"

// Bridge is a Compose file that, laid over a project's own, has every service
// that uses networks join one more from its start. nil if there is none.
func (p Project) Bridge(network string) []byte {
	services := map[string]any{}
	for name, s := range p.Services {
		if s.NetworkMode != "" {
			continue
		}
		// Naming networks takes a service out of the project's default one.
		nets := map[string]any{bridgeKey: nil}
		for _, n := range s.Networks {
			nets[n] = nil
		}
		if len(s.Networks) == 0 {
			nets["default"] = nil
		}
		services[name] = map[string]any{"networks": nets}
	}
	if len(services) == 0 {
		return nil
	}
	// JSON is YAML.
	return []byte(encode(map[string]any{
		"services": services,
		"networks": map[string]any{bridgeKey: map[string]any{"name": network, "external": true}},
	}))
}
