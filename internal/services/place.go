package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
)

// Labels of the containers that this package makes. No other is ever touched.
const (
	labelService = "sandboxforge.service" // its name in the table
	labelSpec    = "sandboxforge.spec"    // what it was made from, see Service.spec
)

// Place is the Docker of one guest, and the network on which its services are.
type Place struct {
	Engine *docker.Engine
	// Dial opens a TCP connection inside the guest.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Network docker.Network
	// Report hears what is going on, one line each; it may be called from
	// several goroutines. nil is allowed.
	Report func(string)
}

func (p Place) report(format string, args ...any) {
	if p.Report != nil {
		p.Report(fmt.Sprintf(format, args...))
	}
}

// What Start found or did.
const (
	StatusRunning = "running" // it ran already
	StatusStarted = "started" // it was there, stopped
	StatusCreated = "created"
)

// Running is a service whose container runs.
type Running struct {
	Service        // with the password that its container was made with
	Status  string // StatusRunning, StatusStarted or StatusCreated
	ID      string
	Address string // on the network
	// Warning says what was moved out of the way, "" for nothing.
	Warning  string
	Attempts int // of Await
	Ready    bool

	passwords []string // that may be in force, the likeliest first
}

// Known is a password that the server may have, or shall have.
type Known struct {
	Password string // "" for none
	Fresh    bool   // it has just been made: the server cannot know it yet
}

// pullLimit bounds the fetching of one image.
const pullLimit = 15 * time.Minute

// mostTries bounds how often a container is set aside, in a guest where another
// one takes its place at once.
const mostTries = 5

// stopGrace is what a server gets to put its data in order.
const stopGrace = 30 * time.Second

// Start has the container of a service run: the one there is, or a new one.
// One that was made from another image or environment is stopped and renamed.
// known is a password that may be in force although the container was made with
// another: it is tried first, or last if it is fresh. Faults are SERVICE_NOT_READY and name the service; a container of
// that name that this package did not make is one. When ctx ends, what was done
// stays done.
func (p Place) Start(ctx context.Context, s Service, known Known) (Running, error) {
	img, err := p.image(ctx, s)
	if err != nil {
		return Running{}, err
	}
	r := Running{Service: s}
	var c docker.ContainerDetail
	// Another process may do the same at the same time: then its container is
	// found on the second look.
	for try := 1; ; try++ {
		var (
			made string
			fits bool
		)
		c, err = p.Engine.Container(ctx, s.Container)
		if err == nil {
			made, fits = s.madeWith(c.Env)
		}
		switch {
		case errors.Is(err, docker.ErrNotFound):
			r.Password = s.Password
			if s.HasPassword() && r.Password == "" {
				r.Password = NewPassword()
			}
			err = p.create(ctx, s, r.Service, img)
			if err != nil && try < 3 {
				if _, lerr := p.Engine.Container(ctx, s.Container); lerr == nil {
					continue
				}
			}
			if err != nil {
				return r, p.fault(ctx, s, err, "the container %s of %s cannot be made", s.Container, s.Name)
			}
			if c, err = p.Engine.Container(ctx, s.Container); err != nil {
				return r, p.fault(ctx, s, err, "the container %s cannot be looked at", s.Container)
			}
			r.Status = StatusCreated
		case err != nil:
			return r, p.fault(ctx, s, err, "the container %s cannot be looked at", s.Container)
		case c.Labels[labelService] == "":
			return r, fault.New(fault.ServiceNotReady, "%s cannot be started: there is a container %s that is not the sandbox's own, and it is left alone", s.Name, s.Container).
				Because("somebody made a container of that name").
				With("service", s.Name).With("container", s.Container).
				Next("rename it: docker rename %s another-name", s.Container).
				Next("or set infra.%s.container_name_prefix to another value", s.Name)
		case c.Labels[labelService] != s.Name || c.Labels[labelSpec] != s.spec(img.ID) || !fits:
			if try > mostTries {
				return r, p.fault(ctx, s, errors.New("it is there again each time"), "the container %s, which was made from other settings, cannot be set aside", s.Container)
			}
			old, err := p.setAside(ctx, s, c)
			if err != nil {
				return r, p.fault(ctx, s, err, "the container %s, which was made from other settings, cannot be set aside", s.Container)
			}
			r.Warning = fmt.Sprintf("%s: the container %s was made from another image or environment; it was stopped and renamed to %s, with its data, and a new one takes its place", s.Name, s.Container, old)
			continue
		default:
			r.Password = made
			r.Status = StatusRunning
			if !c.Running() {
				r.Status = StatusStarted
			}
		}
		break
	}
	if err := p.run(ctx, &r, c); err != nil {
		return r, err
	}
	r.passwords = []string{r.Password}
	if s.HasPassword() && known.Password != "" && known.Password != r.Password && r.Status != StatusCreated {
		if known.Fresh {
			r.passwords = append(r.passwords, known.Password)
		} else {
			r.passwords = []string{known.Password, r.Password}
			r.Password = known.Password
		}
	}
	return r, nil
}

// image finds a service's image, and fetches it if it is missing.
func (p Place) image(ctx context.Context, s Service) (docker.Image, error) {
	img, err := p.Engine.Image(ctx, s.Image)
	if err == nil {
		return img, nil
	}
	if !errors.Is(err, docker.ErrNotFound) {
		return img, p.fault(ctx, s, err, "the image %s of %s cannot be looked up", s.Image, s.Name)
	}
	p.report("%s: fetching the image %s", s.Name, s.Image)
	pull, cancel := context.WithTimeout(ctx, pullLimit)
	defer cancel()
	if err = p.Engine.PullImage(pull, s.Image, func(step string) { p.report("%s: %s", s.Name, step) }); err == nil {
		img, err = p.Engine.Image(ctx, s.Image)
	}
	if err == nil {
		return img, nil
	}
	if ctx.Err() != nil || errors.As(err, new(*fault.Error)) {
		return img, p.fault(ctx, s, err, "")
	}
	return img, CannotFetch(&Unfetched{Service: s, Err: err})
}

func (p Place) create(ctx context.Context, configured, s Service, img docker.Image) error {
	p.report("%s: making the container %s", s.Name, s.Container)
	address, err := p.address(ctx, s)
	if err != nil {
		return err
	}
	_, err = p.Engine.CreateContainer(ctx, docker.NewContainer{
		Name: s.Container, Image: s.Image, Env: s.Env(), Network: p.Network.Name, Address: address, Restart: true,
		Labels: map[string]string{labelService: s.Name, labelSpec: configured.spec(img.ID), docker.KeepLabel: "1"},
	})
	return err
}

// perKind is how many fixed addresses each kind has: a container whose name was
// configured otherwise goes on beside the new one.
const perKind = 10

// address is one that no other container of the kind was given on the network,
// "" if there is none.
func (p Place) address(ctx context.Context, s Service) (string, error) {
	first := s.kind.index() * perKind
	if p.Network.Fixed(first) == "" {
		return "", nil
	}
	list, err := p.Engine.Containers(ctx, true, labelService+"="+s.Name)
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for _, other := range list {
		c, err := p.Engine.Container(ctx, other.ID)
		if err != nil && !errors.Is(err, docker.ErrNotFound) {
			return "", err
		}
		if c.Name != s.Container {
			taken[c.Fixed[p.Network.Name]] = true
		}
	}
	for i := range perKind {
		if a := p.Network.Fixed(first + i); !taken[a] {
			return a, nil
		}
	}
	return "", nil
}

// run has the container c run on the network, and finds its address there.
func (p Place) run(ctx context.Context, r *Running, c docker.ContainerDetail) error {
	var err error
	connected := slices.Contains(c.Networks, p.Network.Name)
	if !connected {
		var address string
		if address, err = p.address(ctx, r.Service); err == nil {
			err = p.Engine.ConnectNetwork(ctx, p.Network.Name, r.Container, address)
		}
	}
	if !connected || !c.Running() {
		if err == nil && !c.Running() {
			err = p.Engine.StartContainer(ctx, r.Container)
		}
		if err == nil {
			c, err = p.Engine.Container(ctx, r.Container)
		}
	}
	if err != nil {
		return p.fault(ctx, r.Service, err, "the container %s of %s cannot be started", r.Container, r.Name)
	}
	r.ID, r.Address = c.ID, c.Addresses[p.Network.Name]
	return nil
}

// setAside stops a container that no longer fits and gives it a name that
// nobody has.
func (p Place) setAside(ctx context.Context, s Service, c docker.ContainerDetail) (name string, err error) {
	p.report("%s: setting the old container aside", s.Name)
	if err := p.Engine.StopContainer(ctx, c.ID, stopGrace); err != nil {
		return "", err
	}
	// Its address is the new one's.
	if err := p.Engine.DisconnectNetwork(ctx, p.Network.Name, c.ID); err != nil {
		return "", err
	}
	for n := 1; n < 1000; n++ {
		name = fmt.Sprintf("%s-old-%d", s.Container, n)
		if _, err := p.Engine.Container(ctx, name); !errors.Is(err, docker.ErrNotFound) {
			if err != nil {
				return "", err
			}
			continue
		}
		return name, p.Engine.RenameContainer(ctx, c.ID, name)
	}
	return "", errors.New("there are too many old ones: remove some with docker rm")
}

// fault is what Docker did not do for a service.
func (p Place) fault(ctx context.Context, s Service, err error, format string, args ...any) *fault.Error {
	var f *fault.Error
	switch {
	case ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), fault.Cancelled, "starting %s was cancelled", s.Name)
	case errors.As(err, &f):
		return f
	}
	return fault.New(fault.ServiceNotReady, format, args...).Because("%s", oneLine(s.hide(err.Error()))).
		With("service", s.Name).With("container", s.Container).
		Next("look at it with run_command: docker ps -a, docker logs %s", s.Container).
		Next("then call prepare_workspace again")
}

// oneLine is a text of the guest in one line of bounded length.
func oneLine(s string) string {
	const most = 500
	return docker.Words(strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "�"), most)
}
