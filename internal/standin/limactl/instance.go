//go:build linux

package limactl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// instance is an instance as it is listed.
type instance struct {
	Name          string   `json:"name"`
	Hostname      string   `json:"hostname"`
	Status        string   `json:"status"`
	Dir           string   `json:"dir"`
	VMType        string   `json:"vmType"`
	Arch          string   `json:"arch"`
	CPUs          int      `json:"cpus,omitempty"`
	Memory        int64    `json:"memory,omitempty"`
	Disk          int64    `json:"disk,omitempty"`
	SSHLocalPort  int      `json:"sshLocalPort,omitempty"`
	SSHConfigFile string   `json:"sshConfigFile,omitempty"`
	HostAgentPID  int      `json:"hostAgentPID,omitempty"`
	DriverPID     int      `json:"driverPID,omitempty"`
	Errors        []string `json:"errors,omitempty"`
	Config        doc      `json:"config,omitempty"`
	SSHAddress    string   `json:"sshAddress,omitempty"`
	Protected     bool     `json:"protected"`
	LimaVersion   string   `json:"limaVersion"`
}

// inspect fails only for an instance that is not there.
func inspect(name string) (*instance, error) {
	i := &instance{Name: name, Hostname: "lima-" + name, Dir: dirOf(name), LimaVersion: Version}
	yaml := filepath.Join(i.Dir, "lima.yaml")
	text, err := os.ReadFile(yaml)
	if err != nil {
		return nil, err
	}
	var d doc
	if err := json.Unmarshal(text, &d); err != nil {
		i.Status, i.Errors = "Broken", []string{"failed to unmarshal YAML: " + err.Error()}
		return i, nil
	}
	d = effective(d)
	i.Config = d
	i.VMType, _ = d["vmType"].(string)
	i.Arch, _ = d["arch"].(string)
	cpus, _ := d["cpus"].(float64)
	i.CPUs, i.Memory, i.Disk = int(cpus), size(d["memory"]), size(d["disk"])
	i.SSHAddress, i.SSHConfigFile = "127.0.0.1", filepath.Join(i.Dir, "ssh.config")
	if b, err := os.ReadFile(i.SSHConfigFile); err == nil {
		for line := range strings.Lines(string(b)) {
			if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Port "); ok {
				i.SSHLocalPort, _ = strconv.Atoi(p)
			}
		}
	}
	i.HostAgentPID, i.DriverPID = readPID(filepath.Join(i.Dir, "ha.pid")), readPID(filepath.Join(i.Dir, i.VMType+".pid"))
	switch {
	case i.HostAgentPID > 0 && i.DriverPID > 0:
		i.Status = "Running"
	case i.HostAgentPID == 0 && i.DriverPID == 0:
		i.Status = "Stopped"
	case i.HostAgentPID > 0:
		i.Status, i.Errors = "Broken", []string{"host agent is running but driver is not"}
	default:
		i.Status, i.Errors = "Broken", []string{i.VMType + " driver is running but host agent is not"}
	}
	return i, nil
}

// readPID is 0 when the process is gone; the file is removed then.
func readPID(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || syscall.Kill(pid, 0) != nil {
		os.Remove(path)
		return 0
	}
	if i := strings.LastIndexByte(string(stat), ')'); i >= 0 && strings.HasPrefix(string(stat[i+1:]), " Z") {
		os.Remove(path)
		return 0
	}
	return pid
}

func list(c command) error {
	if c.flag("format") != "json" && !c.is("json") {
		return fmt.Errorf("the stand-in lists as JSON only")
	}
	entries, err := os.ReadDir(home())
	if err != nil && !missing(err) {
		return err
	}
	var all []*instance
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") || strings.HasPrefix(e.Name(), "_") {
			continue
		}
		i, err := inspect(e.Name())
		if err != nil {
			logLine("warning", fmt.Sprintf("Skipping instance `%s`: %v (being cloned or deleted?)", e.Name(), err))
			continue
		}
		all = append(all, i)
	}
	if len(c.args) > 0 {
		var some []*instance
		for _, want := range c.args {
			n := len(some)
			for _, i := range all {
				if i.Name == want {
					some = append(some, i)
				}
			}
			if len(some) == n {
				logLine("warning", "No instance matching "+want+" found.")
			}
		}
		all = some
	} else if len(all) == 0 {
		logLine("warning", "No instance found. Run `limactl create` to create an instance.")
	}
	how := faultOf("list")
	switch how {
	case "array":
		return json.NewEncoder(os.Stdout).Encode(all)
	case "wrapped":
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"instances": all})
	}
	for _, i := range all {
		b, err := json.Marshal(i)
		if err != nil {
			return err
		}
		switch how {
		case "noise":
			fmt.Println(`time="now" level=warning msg="{ this is no JSON"`)
			fmt.Println("[hostagent] noise")
		case "cut":
			b = b[:len(b)/2]
		}
		fmt.Println(string(b))
	}
	return nil
}

func save(name string, d doc) error {
	b, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dirOf(name), "lima.yaml"), b, 0o644)
}
