package sandbox

import (
	"context"
	"errors"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// installLimit bounds the installation of Docker in a guest.
const installLimit = 20 * time.Minute

// dockerInstall installs Docker with the guest's own apt, and nothing that is
// there already. Releases differ in which packages hold the client, Compose and
// buildx, and some hold them in one. It waits for an installation that an earlier
// call began.
const dockerInstall = `set -e
export DEBIAN_FRONTEND=noninteractive
apt="apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=2"
$apt update
packages=docker.io
for p in docker-cli docker-buildx docker-compose-v2 docker-compose iptables; do
	case $p:$packages in docker-compose:*docker-compose-v2*) continue ;; esac
	if [ -n "$(apt-cache show --no-all-versions $p 2>/dev/null)" ]; then packages="$packages $p"; fi
done
$apt install -y --no-install-recommends $packages
if id sandbox >/dev/null 2>&1; then usermod -aG docker sandbox; fi
systemctl daemon-reload
systemctl start docker.socket docker.service`

// ensureDocker installs Docker in a guest that has none, if the configuration
// wants that and the guest has what it takes; it does not wait for Docker to
// answer. When ctx ends the installation goes on in the guest, and the next call
// waits for it.
func (s *Service) ensureDocker(ctx context.Context, l store.Lease, g *guest.Client, cfg config.Config) error {
	if has, err := hasDocker(ctx, g); err != nil || has {
		return nil // the wait for Docker says what is wrong with the guest
	}
	missing := func(format string, args ...any) *fault.Error {
		return fault.New(fault.RuntimeNotReady, "this guest has no Docker").Because(format, args...)
	}
	const another = "set vm.image to an image with Docker (the default one) and create another instance, or work without it: pass auto_bootstrap: false"
	if !cfg.Docker.InstallIfMissing {
		return missing("its image was built without Docker, and docker.install_if_missing is false").
			Next("set docker.install_if_missing to true and call prepare_workspace").Next(another)
	}
	for _, need := range []struct{ path, what string }{{"/usr/bin/apt-get", "no apt-get to install it"}, {"/run/systemd/system", "no systemd, so that nothing would run it"}} {
		if _, err := g.Stat(ctx, need.path, false); errors.Is(err, guest.ErrNotFound) {
			return missing("its image was built without Docker, and has %s", need.what).Next(another)
		} else if err != nil {
			return s.guestFault(ctx, l, "looking at what the guest has", err)
		}
	}
	report(ctx, Progress{Stage: "docker", Message: "this guest has no Docker: installing it with apt-get"})
	out := newClip(16 << 10)
	p, err := g.Run(ctx, guest.NewID("install-"), guest.Spec{Command: dockerInstall, User: "root", Dir: "/", Timeout: installLimit}, func(o guest.Output) {
		out.write(o.Data)
		if line := lastLine(o.Data); line != "" {
			report(ctx, Progress{Stage: "docker", Message: "installing: " + line})
		}
	})
	text, _, _ := out.text()
	switch {
	case err != nil && ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), fault.RuntimeNotReady, "Docker is still being installed in the guest").
			Because("the guest had no Docker; installing it goes on").
			Next("call prepare_workspace again: it waits for the installation")
	case err != nil:
		return s.guestFault(ctx, l, "installing Docker", err)
	case p.ExitCode != 0 || p.Status != guest.StatusExited:
		return fault.New(fault.RuntimeNotReady, "this guest has no Docker, and it could not be installed").
			Because("%s", orText(lastLine([]byte(text)), "apt-get failed in the guest")).
			Next("the guest needs its distribution's package mirror: see with run_command whether `sudo apt-get update` works").
			Next(another).With("output", text)
	}
	return nil
}
