//go:build linux

package limactl

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

func create(c command) error {
	if err := c.terminal(); err != nil {
		return err
	}
	if len(c.args) != 1 {
		return errors.New("accepts 1 arg(s)")
	}
	return makeInstance(c.flag("name"), c.args[0], c)
}

func makeInstance(name, locator string, c command) error {
	if err := checkName(name); err != nil {
		return err
	}
	if _, err := os.Lstat(dirOf(name)); !missing(err) {
		return fmt.Errorf("instance `%s` already exists", name)
	}
	d, err := template(locator)
	if err != nil {
		return err
	}
	if err := apply(d, c); err != nil {
		return err
	}
	full := effective(d)
	if full["vmType"] != "qemu" {
		return fmt.Errorf("unsupported driver: %q", full["vmType"])
	}
	if full["arch"] != hostArch() {
		return fmt.Errorf("the stand-in has no image for arch %q", full["arch"])
	}
	if err := userKey(); err != nil {
		return err
	}
	if err := os.Mkdir(dirOf(name), 0o700); err != nil {
		return err
	}
	if err := save(name, d); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dirOf(name), "lima-version"), []byte(Version), 0o644); err != nil {
		return err
	}
	if cd, ok := full["containerd"].(doc); ok && isTrue(cd["user"]) {
		// The download for containerd fails without a network, and what was
		// made stays.
		return errors.New("failed to download the nerdctl archive (the stand-in has no network: use --containerd=none or --plain)")
	}
	if faultOf("create") == "late" {
		return errors.New("the stand-in was told to fail late")
	}
	logLine("info", fmt.Sprintf("Run `limactl start %s` to start the instance.", name))
	return makeDisk(name)
}

// userKey makes the key that every instance takes.
func userKey() error {
	dir := filepath.Join(home(), "_config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, "user")
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(key, "lima")
	if err != nil {
		return err
	}
	sshPub, err := ssh.NewPublicKey(pub)
	if err != nil {
		return err
	}
	// Several at once: the first counts.
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(tmp)
	if err := os.WriteFile(tmp, pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	if err := os.Link(tmp, path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.WriteFile(path+".pub", ssh.MarshalAuthorizedKey(sshPub), 0o644)
}

func clone(c command) error {
	if err := c.terminal(); err != nil {
		return err
	}
	if len(c.args) != 2 {
		return errors.New("accepts 2 arg(s)")
	}
	from, to := c.args[0], c.args[1]
	i, err := inspect(from)
	if err != nil {
		return fmt.Errorf("instance `%s` not found", from)
	}
	if i.Status == "Running" {
		return errors.New("cannot clone a running instance")
	}
	if err := checkName(to); err != nil {
		return err
	}
	if err := os.Mkdir(dirOf(to), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("instance `%s` already exists", to)
		}
		return err
	}
	entries, err := os.ReadDir(i.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if !e.Type().IsRegular() || ext == ".pid" || ext == ".sock" || ext == ".tmp" {
			continue
		}
		if err := copyFile(filepath.Join(dirOf(to), e.Name()), filepath.Join(i.Dir, e.Name())); err != nil {
			return err
		}
	}
	if faultOf("clone") == "late" {
		return errors.New("the stand-in was told to fail late")
	}
	return change(to, c)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// change applies the flags of clone and edit. A disk only grows.
func change(name string, c command) error {
	var d doc
	if err := readJSON(filepath.Join(dirOf(name), "lima.yaml"), &d); err != nil {
		return err
	}
	before := size(effective(d)["disk"])
	if err := apply(d, c); err != nil {
		return err
	}
	if after := size(effective(d)["disk"]); after < before {
		return fmt.Errorf("field `disk`: shrinking the disk (%d --> %d) is not supported", before, after)
	}
	return save(name, d)
}

func edit(c command) error {
	if len(c.args) != 1 {
		return errors.New("accepts 1 arg(s)")
	}
	i, err := inspect(c.args[0])
	if err != nil {
		return fmt.Errorf("instance `%s` not found", c.args[0])
	}
	if i.Status == "Running" {
		return errors.New("cannot edit a running instance")
	}
	return change(i.Name, c)
}

func shell(c command) error {
	if len(c.args) == 0 {
		return errors.New("requires at least 1 arg(s)")
	}
	name, _, _ := strings.Cut(c.args[0], ":")
	i, err := inspect(name)
	switch {
	case err != nil:
		return fmt.Errorf("instance `%s` does not exist, run `limactl create %s` to create a new instance", name, name)
	case i.Status == "Stopped":
		return fmt.Errorf("instance `%s` is stopped, run `limactl start %s` to start the instance", name, name)
	}
	return errors.New("the stand-in has no shell")
}

func snapshot(c command) error {
	if len(c.args) < 2 {
		return errors.New("requires an instance")
	}
	if _, err := inspect(c.args[1]); err != nil {
		return fmt.Errorf("open %s: no such file or directory", filepath.Join(dirOf(c.args[1]), "lima.yaml"))
	}
	return errors.New("the stand-in has no snapshots")
}

func remove(c command) error {
	for _, name := range c.args {
		i, err := inspect(name)
		if err != nil {
			if _, serr := os.Lstat(dirOf(name)); serr == nil {
				return fmt.Errorf("instance `%s` directory `%s` exists but its `lima.yaml` could not be read; it was NOT deleted", name, dirOf(name))
			}
			logLine("warning", fmt.Sprintf("Ignoring non-existent instance `%s`", name))
			continue
		}
		if !c.is("force") && i.Status != "Stopped" {
			return fmt.Errorf("failed to delete instance `%s`: expected status `Stopped`, got `%s`", name, i.Status)
		}
		kill(i)
		if err := os.RemoveAll(i.Dir); err != nil {
			return err
		}
		logLine("info", fmt.Sprintf("Deleted `%s` (`%s`)", name, i.Dir))
	}
	return nil
}

// kill does not wait, as the real one.
func kill(i *instance) {
	for _, pid := range []int{i.DriverPID, i.HostAgentPID} {
		if pid > 0 {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for _, pattern := range []string{"*.pid", "*.sock", "*.tmp"} {
		files, _ := filepath.Glob(filepath.Join(i.Dir, pattern))
		for _, f := range files {
			os.Remove(f)
		}
	}
}

func stop(c command) error {
	if len(c.args) != 1 {
		return errors.New("accepts 1 arg(s)")
	}
	name := c.args[0]
	i, err := inspect(name)
	if err != nil {
		return fmt.Errorf("open %s: no such file or directory", filepath.Join(dirOf(name), "lima.yaml"))
	}
	if c.is("force") {
		kill(i)
		return nil
	}
	if i.Status != "Running" {
		return fmt.Errorf("expected status `Running`, got `%s` (maybe use `limactl stop -f`?)", i.Status)
	}
	logLine("info", fmt.Sprintf("Sending SIGINT to hostagent process %d", i.HostAgentPID))
	syscall.Kill(i.HostAgentPID, syscall.SIGINT)
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if i, err := inspect(name); err != nil || i.Status == "Stopped" {
			return nil
		}
	}
	return errors.New("timed out waiting for instance to shut down after 3 minutes")
}

func start(c command) error {
	if err := c.terminal(); err != nil {
		return err
	}
	name := "default"
	if len(c.args) > 0 {
		name = c.args[0]
	}
	i, err := inspect(name)
	if err != nil {
		// The trap: a missing name is made, with the host's home in it.
		logLine("info", fmt.Sprintf("Creating an instance `%s` from template:default (Not from template:%s)", name, name))
		made := command{flags: map[string][]string{"set": {".containerd.user = false"}}}
		if err := makeInstance(name, "template:default", made); err != nil {
			return err
		}
		if i, err = inspect(name); err != nil {
			return err
		}
	}
	switch i.Status {
	case "Running":
		logLine("info", fmt.Sprintf("The instance `%s` is already running.", name))
		return nil
	case "Broken":
		logLine("warning", "expected status `Stopped`, got `Broken`")
	}
	if i.HostAgentPID > 0 {
		return fmt.Errorf("instance `%s` seems running (hint: remove `%s` if the instance is not actually running)", name, filepath.Join(i.Dir, "ha.pid"))
	}
	timeout, err := time.ParseDuration(c.flag("timeout"))
	if err != nil {
		timeout = 10 * time.Minute
	}
	out, err := os.Create(filepath.Join(i.Dir, "ha.stdout.log"))
	if err != nil {
		return err
	}
	defer out.Close()
	errs, err := os.Create(filepath.Join(i.Dir, "ha.stderr.log"))
	if err != nil {
		return err
	}
	defer errs.Close()
	logLine("info", fmt.Sprintf("Starting the instance `%s` with internal VM driver `qemu`", name))
	cmd := self("hostagent", name)
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	deadline := time.After(timeout)
	for {
		switch status := lastStatus(out.Name()); {
		case status.Running:
			logLine("info", fmt.Sprintf("READY. Run `ssh -F %q lima-%s` to open the shell.", i.SSHConfigFile, name))
			return nil
		case status.Exiting:
			return fmt.Errorf("exiting, status=%+v (hint: see `%s`)", status, errs.Name())
		}
		select {
		case err := <-exited:
			return fmt.Errorf("host agent process has exited: %w", err)
		case <-deadline:
			return errors.New("did not receive an event with the \"running\" status")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

type status struct {
	Running bool `json:"running"`
	Exiting bool `json:"exiting"`
}

func lastStatus(path string) (s status) {
	f, err := os.Open(path)
	if err != nil {
		return s
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var e struct{ Status status }
		if json.Unmarshal(sc.Bytes(), &e) == nil {
			s = e.Status
		}
	}
	return s
}

// self is another process of this program.
func self(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = "limactl"
	cmd.Dir = "/"
	return cmd
}

func writePID(name, file string, pid int) error {
	path := filepath.Join(dirOf(name), file)
	if err := os.WriteFile(path+".tmp", []byte(strconv.Itoa(pid)+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
