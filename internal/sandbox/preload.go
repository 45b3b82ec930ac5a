package sandbox

import (
	"context"
	"errors"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/image"
)

// preloadLimit bounds the loading of an image's container images.
const preloadLimit = 10 * time.Minute

// preloads reports whether container images of the guest image are still to be
// loaded, or being loaded.
func (s *Service) preloads(ctx context.Context, g *guest.Client) bool {
	_, err := g.Stat(ctx, image.PreloadDir, false)
	return !errors.Is(err, guest.ErrNotFound)
}

// waitPreloaded returns when the container images that came with the guest
// image are in Docker. Docker must answer.
func (s *Service) waitPreloaded(ctx context.Context, g *guest.Client) error {
	if !s.preloads(ctx, g) {
		return nil
	}
	report(ctx, Progress{Stage: "docker", Message: "the guest image's container images are being loaded into Docker"})
	// The unit runs once; to start it is to wait for it, or to try again.
	out := newClip(4 << 10)
	p, err := g.Run(ctx, guest.NewID("preload-"), guest.Spec{
		Argv: []string{"systemctl", "start", image.PreloadUnit}, User: "root", Dir: "/", Timeout: preloadLimit,
	}, func(o guest.Output) { out.write(o.Data) })
	if err != nil {
		return err
	}
	if p.ExitCode != 0 || p.Status != guest.StatusExited {
		text, _, _ := out.text()
		return fault.New(fault.RuntimeNotReady, "the guest image's container images could not be loaded into Docker").
			Because("%s", orText(lastLine([]byte(text)), "docker load failed in the guest")).
			Next("look at `journalctl -u %s` with run_command; a full disk is likely: set vm.disk_gib higher", image.PreloadUnit).
			Next("build the image again without the archive that fails: sandboxforge image build --load")
	}
	return nil
}
