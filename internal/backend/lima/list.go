package lima

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxList bounds what is read of a listing.
const maxList = 16 << 20

// listed is an instance as limactl lists it.
type listed struct {
	Name          string   `json:"name"`
	Status        string   `json:"status"`
	Dir           string   `json:"dir"`
	VMType        string   `json:"vmType"`
	Arch          string   `json:"arch"`
	CPUs          int      `json:"cpus"`
	Memory        int64    `json:"memory"` // bytes
	Disk          int64    `json:"disk"`   // bytes
	SSHLocalPort  int      `json:"sshLocalPort"`
	SSHConfigFile string   `json:"sshConfigFile"`
	HostAgentPID  int      `json:"hostAgentPID"`
	DriverPID     int      `json:"driverPID"`
	Errors        []string `json:"errors"`
	Config        *config  `json:"config"`
	LimaVersion   string   `json:"limaVersion"`
}

// Lima's statuses; the empty one is one that it does not know.
const (
	statusRunning = "Running"
	statusBroken  = "Broken"
)

// running: both the hypervisor and its keeper live. That the status says so is
// not enough: it says so of a VM whose start failed, too, which is a running VM
// all the same.
func (l listed) running() bool {
	if l.HostAgentPID == 0 && l.DriverPID == 0 {
		return l.Status == statusRunning // a version without pids
	}
	return l.HostAgentPID > 0 && l.DriverPID > 0
}

// orphaned: the hypervisor lives without its keeper.
func (l listed) orphaned() bool { return l.DriverPID > 0 && l.HostAgentPID == 0 }

// parseList reads what `limactl list --format json` prints: an object a line,
// or an array, or {"instances": []}, with other lines between them. What begins
// as a value and is none is an error: a VM must not seem gone because its line
// was cut.
func parseList(out []byte) ([]listed, error) {
	if len(out) > maxList {
		return nil, fmt.Errorf("limactl lists more than %d bytes", maxList)
	}
	var all []listed
	for len(out) > 0 {
		out = bytes.TrimLeft(out, " \t\r\n")
		if !beginsValue(out) {
			_, out, _ = bytes.Cut(out, []byte("\n"))
			continue
		}
		d := json.NewDecoder(bytes.NewReader(out))
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("limactl's listing is not JSON at %.80q: %w", out, err)
		}
		out = out[d.InputOffset():]
		found, err := parseValue(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// beginsValue tells a listing from a warning that begins with a bracket.
func beginsValue(b []byte) bool {
	if len(b) == 0 || b[0] != '{' && b[0] != '[' {
		return false
	}
	next := bytes.TrimLeft(b[1:], " \t\r\n")
	switch {
	case len(next) == 0:
		return true
	case b[0] == '{':
		return next[0] == '"' || next[0] == '}'
	}
	return next[0] == '{' || next[0] == ']'
}

func parseValue(raw json.RawMessage) ([]listed, error) {
	if raw[0] == '[' {
		var all []listed
		if err := json.Unmarshal(raw, &all); err != nil {
			return nil, fmt.Errorf("limactl's listing: %w", err)
		}
		return all, named(all)
	}
	var wrapped struct {
		Instances *[]listed `json:"instances"`
	}
	if err := json.Unmarshal(raw, &wrapped); err == nil && wrapped.Instances != nil {
		return *wrapped.Instances, named(*wrapped.Instances)
	}
	var one listed
	if err := json.Unmarshal(raw, &one); err != nil {
		return nil, fmt.Errorf("limactl's listing: %w", err)
	}
	all := []listed{one}
	if bytes.Equal(bytes.Join(bytes.Fields(raw), nil), []byte("{}")) {
		return nil, nil
	}
	return all, named(all)
}

func named(all []listed) error {
	for _, l := range all {
		if l.Name == "" {
			return errors.New("limactl lists an instance without a name")
		}
	}
	return nil
}
