package cli

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"sandboxforge/internal/demo"
	"sandboxforge/internal/doctor"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/image"
	"sandboxforge/internal/sandbox"
)

const serverName = "sandboxforge-mcp-server"

func demoCommand(env *Env) *cobra.Command {
	var asJSON, keep bool
	var dir string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Take a sample workspace through the whole life of a VM, over MCP",
		Long: `Start the real MCP server, talk to it over stdio as any client would, and take a
small sample workspace through the whole life of a VM: create, run, test, build
and run a container, collect artifacts, sync back, destroy. The guest image is
built first if it is missing, and so is the template in which the VM begins.
Nothing stays but these two and, with --dir or --keep, the copy of the workspace.

An interrupt destroys the VM; a second one leaves it to its lease.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if ctx == nil {
				ctx = context.Background()
			}
			ctx, stop := signal.NotifyContext(ctx, interrupts...)
			defer stop()
			// With the first interrupt the second gets its ordinary meaning.
			defer context.AfterFunc(ctx, stop)()
			r, err := runDemo(ctx, env, dir, keep, asJSON)
			if asJSON && r != nil {
				if werr := writeJSON(env.Stdout, r); err == nil {
					err = werr
				}
			}
			if err != nil && ctx.Err() != nil {
				return &interruptedError{err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "keep the copy of the workspace and the artifacts in a new directory under this one")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the temporary copy of the workspace")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func runDemo(ctx context.Context, env *Env, dir string, keep, asJSON bool) (*demo.Result, error) {
	s, err := env.settings()
	if err != nil {
		return nil, err
	}
	if err := s.EnsureHome(); err != nil {
		return nil, err
	}
	server, err := env.findServer()
	if err != nil {
		return nil, err
	}
	out := env.Stdout
	if asJSON {
		out = env.Stderr
	}
	o := demo.Options{
		Server: server, Settings: s, Version: env.Version, Environ: os.Environ(), Dir: dir, Keep: keep, Out: out,
		Processes: func(name string) ([]int, error) {
			procs, err := doctor.Processes(s.VMDir())
			var pids []int
			for _, p := range procs {
				if p.VM == name {
					pids = append(pids, p.PID)
				}
			}
			return pids, err
		},
	}
	if runtime.GOOS == "linux" && (s.Backend == "auto" || s.Backend == "qemu") {
		o.EnsureImage = func(ctx context.Context, progress func(stage, text string)) (bool, error) {
			recipe, err := image.ByName("", runtime.GOARCH)
			if err != nil {
				return false, err
			}
			_, cached, err := buildImage(ctx, image.Store{Dir: s.ImageDir}, recipe, progress)
			return cached, err
		}
		if s.Templates {
			o.EnsureTemplate = func(ctx context.Context, root string, progress func(stage, text string)) (made bool, err error) {
				err = env.withService(ctx, func(ctx context.Context, svc Service) error {
					ctx = sandbox.WithProgress(ctx, func(p sandbox.Progress) { progress(p.Stage, p.Message) })
					r, err := svc.WarmTemplate(ctx, sandbox.WarmTemplateRequest{WorkspaceRoot: root})
					made = err == nil && r.Made
					return err
				})
				return made, err
			}
		}
	}
	return demo.Run(ctx, o)
}

// findServer looks for the server beside this program, then on PATH.
func (e *Env) findServer() (string, error) {
	name := serverName
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	self, err := e.Executable()
	if err == nil {
		if real, rerr := filepath.EvalSymlinks(self); rerr == nil {
			self = real
		}
		path := filepath.Join(filepath.Dir(self), name)
		if _, err = os.Stat(path); err == nil {
			return path, nil
		}
	}
	if path, lerr := exec.LookPath(name); lerr == nil {
		return filepath.Abs(path)
	}
	if err == nil {
		err = fs.ErrNotExist
	}
	return "", fault.Wrap(err, fault.Internal, "%s was found neither beside this program nor on PATH", serverName).
		Because("only one of the two programs was built or installed").
		Next("run `make build` in the checkout, or install both programs in one directory")
}
