//go:build linux

package limactl

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// doc is a lima.yaml; the stand-in writes JSON, which is YAML.
type doc = map[string]any

func hostArch() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

// template is what a stock template has that matters here: the host's home
// mounted, and for docker a socket forwarded to the host.
func template(locator string) (doc, error) {
	name, ok := strings.CutPrefix(locator, "template:")
	switch {
	case !ok || name != "default" && name != "docker" && name != "debian":
		return nil, fmt.Errorf("failed to read template locator %q", locator)
	}
	d := doc{"mounts": []any{doc{"location": "~"}}, "images": []any{doc{"location": "standin"}}}
	if name == "docker" {
		d["portForwards"] = []any{doc{"guestSocket": "/run/user/{{.UID}}/docker.sock", "hostSocket": "{{.Dir}}/sock/docker.sock"}}
		d["probes"] = []any{doc{"script": "docker is up"}}
	}
	return d, nil
}

// effective is the configuration as Lima fills it in: a default.yaml's mounts
// are added, and what an override.yaml says counts.
func effective(d doc) doc {
	out := doc{}
	fill := func(from doc) {
		for k, v := range from {
			out[k] = v
		}
	}
	fill(doc{
		"vmType": "qemu", "arch": hostArch(), "cpus": 4.0, "memory": "4GiB", "disk": "100GiB", "plain": false,
		"propagateProxyEnv": true, "hostResolver": doc{"enabled": true, "ipv6": false},
		"ssh":        doc{"localPort": 0.0, "loadDotSSHPubKeys": false, "forwardAgent": false, "forwardX11": false, "forwardX11Trusted": false},
		"containerd": doc{"system": false, "user": true},
	})
	nested := func(from doc) {
		for _, k := range []string{"ssh", "hostResolver", "containerd"} {
			if sub, ok := from[k].(doc); ok {
				merged := doc{}
				for kk, v := range out[k].(doc) {
					merged[kk] = v
				}
				for kk, v := range sub {
					merged[kk] = v
				}
				from[k] = merged
			}
		}
		fill(from)
	}
	nested(copyOf(d))
	var extra, over doc
	if readJSON(filepath.Join(home(), "_config", "default.yaml"), &extra) == nil {
		if m, ok := extra["mounts"].([]any); ok && !isTrue(out["plain"]) {
			have, _ := out["mounts"].([]any)
			out["mounts"] = append(m, have...)
		}
	}
	if isTrue(out["plain"]) { // before the override, as Lima 2 was seen to do
		out["mounts"], out["portForwards"] = []any{}, []any{}
		out["containerd"] = doc{"system": false, "user": false}
	}
	if readJSON(filepath.Join(home(), "_config", "override.yaml"), &over) == nil {
		nested(over)
	}
	return out
}

func isTrue(v any) bool { b, ok := v.(bool); return ok && b }

func copyOf(d doc) doc {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	var out doc
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

// apply changes a configuration as the flags of create, clone and edit do.
func apply(d doc, c command) error {
	if c.is("mount-none") {
		d["mounts"] = nil
	}
	if c.is("plain") {
		d["plain"] = true
	}
	if v := c.flag("cpus"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("invalid argument %q for \"--cpus\" flag", v)
		}
		d["cpus"] = float64(n)
	}
	for flag, key := range map[string]string{"memory": "memory", "disk": "disk"} {
		if v := c.flag(flag); v != "" {
			d[key] = v + "GiB"
		}
	}
	for flag, key := range map[string]string{"vm-type": "vmType", "arch": "arch"} {
		if v := c.flag(flag); v != "" {
			d[key] = v
		}
	}
	for _, expr := range c.flags["set"] {
		for part := range strings.SplitSeq(expr, " | ") {
			if err := assign(d, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// assign does one `.a.b = value`, the part of yq that the stand-in knows.
func assign(d doc, expr string) error {
	path, value, ok := strings.Cut(expr, " = ")
	bad := fmt.Errorf("the stand-in cannot evaluate the expression %q", expr)
	if !ok || !strings.HasPrefix(path, ".") {
		return bad
	}
	var v any
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		return bad
	}
	keys := strings.Split(path[1:], ".")
	for _, k := range keys[:len(keys)-1] {
		sub, ok := d[k].(doc)
		if !ok {
			sub = doc{}
			d[k] = sub
		}
		d = sub
	}
	d[keys[len(keys)-1]] = v
	return nil
}

// size reads 512MiB, 4GiB and the like.
func size(v any) int64 {
	s, _ := v.(string)
	for suffix, unit := range map[string]int64{"GiB": 1 << 30, "MiB": 1 << 20} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			f, err := strconv.ParseFloat(n, 64)
			if err != nil {
				return 0
			}
			return int64(f * float64(unit))
		}
	}
	return 0
}
