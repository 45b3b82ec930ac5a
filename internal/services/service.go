package services

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

// Service is one server that a configuration asks for.
type Service struct {
	Name      string // mysql, redis or postgres
	Image     string
	Container string // its name, which is its host name too
	Port      int
	Database  string // "" where there is none
	User      string
	// Password is "" for a server without one. Until Start has looked at the
	// container it is what the configuration says, "" for one to be generated.
	Password string
	// InjectTo is the file in the workspace that gets the variables, "" for
	// none.
	InjectTo string

	kind  *kind
	extra map[string]string
}

// Variable is one variable of a connection.
type Variable struct{ Key, Value string }

// Command is a command in a service's container.
type Command struct {
	Argv []string
	Env  []string
}

// suffix follows the configured prefix of a container's name. It is the same
// in every VM, which has a Docker to itself.
const suffix = "-sandbox"

// Wanted is the services that a configuration enables, in a fixed order. Two
// that would have one name are WORKSPACE_CONFIG_INVALID.
func Wanted(c config.InfraConfig) ([]Service, error) {
	var list []Service
	for _, k := range kinds {
		sc := k.config(c)
		if !sc.Enabled {
			continue
		}
		s := Service{
			Name: k.name, Image: sc.Image, Container: sc.ContainerNamePrefix + suffix, Port: k.port,
			User: k.user, InjectTo: sc.InjectEnvTo, kind: k, extra: sc.ExtraEnv,
		}
		if k.databaseVar != "" {
			s.Database = sc.Database
		}
		if k.passwordVar != "" {
			s.Password = sc.Password
		}
		// What the container is told is what is so.
		for name, to := range map[string]*string{k.userVar: &s.User, k.passwordVar: &s.Password, k.databaseVar: &s.Database} {
			if v := sc.ExtraEnv[name]; name != "" && v != "" {
				*to = v
			}
		}
		for _, other := range list {
			if strings.EqualFold(other.Container, s.Container) {
				return nil, fault.New(fault.WorkspaceConfigInvalid, "infra.%s and infra.%s would both run as the container %s", other.Name, s.Name, s.Container).
					Because("both have the same container_name_prefix").
					Next("give infra.%s.container_name_prefix another value", s.Name)
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// HasPassword reports whether the server has a password at all.
func (s Service) HasPassword() bool { return s.kind.passwordVar != "" }

// Connection is the variables that say how to reach the service.
func (s Service) Connection() []Variable { return s.kind.connection(s) }

// Env is the container's environment, sorted.
func (s Service) Env() []string {
	env := s.plainEnv()
	if s.kind.passwordVar != "" {
		env[s.kind.passwordVar] = s.Password
	}
	return flat(env)
}

// plainEnv is the environment without the password.
func (s Service) plainEnv() map[string]string {
	env := map[string]string{}
	maps.Copy(env, s.extra)
	if v := s.kind.databaseVar; v != "" {
		env[v] = s.Database
	}
	if v := s.kind.userVar; v != "" {
		env[v] = s.User
	}
	delete(env, s.kind.passwordVar)
	return env
}

func flat(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// spec is a digest of all that makes a container what it is: another one needs
// another container. A password that was not configured is not in it. s is the
// service as it was configured.
func (s Service) spec(imageID string) string {
	b, err := json.Marshal(struct {
		Format         int
		Service, Image string
		Env            []string
		Password       string
	}{1, s.Name, imageID, flat(s.plainEnv()), s.Password})
	if err != nil {
		panic("services: JSON of texts: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// madeWith is the password that a container of the service was made with; s is as
// it was configured. ok is false if it has none that this package gives.
func (s Service) madeWith(env []string) (password string, ok bool) {
	switch {
	case !s.HasPassword():
		return "", true
	case s.Password != "":
		return s.Password, true // the label says that it was this one
	}
	password = s.passwordIn(env)
	return password, generated(password)
}

// passwordIn finds the password in a container's environment.
func (s Service) passwordIn(env []string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, s.kind.passwordVar+"="); ok && s.kind.passwordVar != "" {
			return v
		}
	}
	return ""
}

// passwordLetters are all that a generated password is made of: no shell, SQL,
// URL or file of variables takes one of them for anything else.
const passwordLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// NewPassword makes a password of 128 random bits.
func NewPassword() string { return rand.Text() }

// generated reports whether a text can be what NewPassword made: what a container
// says that its password is goes into files and records of this host.
func generated(password string) bool {
	return len(password) >= 16 && len(password) <= 64 && strings.Trim(password, passwordLetters) == ""
}

// Rotate is the command that gives the running server a new password, which has
// letters and digits only; ok is false where there is no password. s has the
// password that is in force.
func (s Service) Rotate(password string) (c Command, ok bool) {
	if s.kind.rotate == nil || password == "" || strings.Trim(password, passwordLetters) != "" {
		return Command{}, false
	}
	c = s.kind.rotate(s)
	c.Env = append(c.Env, "SANDBOXFORGE_NEW="+password)
	return c, true
}

// hide takes the service's password out of a text that people will see.
func (s Service) hide(text string, more ...string) string {
	for _, secret := range append(more, s.Password) {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "********")
		}
	}
	return text
}
