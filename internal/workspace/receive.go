package workspace

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"math"
	"path"
	"strings"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/hostpath"
)

// errProtocol: the guest sent what nobody asked for.
var errProtocol = errors.New("the guest's archive is not what was asked for")

// receiveChunk is how many files one stream asks for.
const receiveChunk = 5000

// receive fetches regular files and hands each to take, once, with its
// announced size. What take returns ends the transfer; a file that is not as
// announced is skipped and reported. The stream is hostile: names that were
// not asked for end it, no entry is larger than announced, and all of it is
// bounded.
func receive(ctx context.Context, g Guest, root string, files []string, announced func(p string) *Node,
	take func(p string, n *Node, r io.Reader) error) (failed []Problem, err error) {
	for len(files) > 0 {
		chunk := files[:min(len(files), receiveChunk)]
		files = files[len(chunk):]
		f, err := receiveSome(ctx, g, root, chunk, announced, take)
		failed = append(failed, f...)
		if err != nil {
			return failed, err
		}
	}
	return failed, nil
}

func receiveSome(ctx context.Context, g Guest, root string, files []string, announced func(p string) *Node,
	take func(p string, n *Node, r io.Reader) error) (failed []Problem, err error) {
	left := make(map[string]bool, len(files))
	parents := map[string]bool{".": true}
	var total int64
	for _, p := range files {
		left[p] = true
		total = plus(total, announced(p).Stamp.Size)
		for d := path.Dir(p); !parents[d]; d = path.Dir(d) {
			parents[d] = true
		}
	}
	// Headers, padding and long names, generously.
	bound := plus(total, int64(len(files)+len(parents))*(16<<10)+1<<20)
	stream, err := g.GetTar(ctx, GetTar{Root: root, Paths: files, MaxBytes: uint64(bound)})
	if err != nil {
		return nil, guestFault(err, "files cannot be fetched from %q in the guest", root)
	}
	defer stream.Close()
	tr := tar.NewReader(&ctxReader{ctx, io.LimitReader(stream, bound)})
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return failed, guestFault(ctxErr(ctx, err), "the archive from %q in the guest is damaged", root)
		}
		p := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if h.Typeflag == tar.TypeDir && (p == "" || parents[p]) {
			continue
		}
		if !left[p] {
			return failed, fault.Wrap(errProtocol, fault.BackendCommandFailed, "the guest sent %q, which was not asked for", clip(h.Name)).
				Because("the guest's agent is broken or under another's control").Next("destroy the instance")
		}
		delete(left, p)
		n := announced(p)
		switch {
		case h.Typeflag != tar.TypeReg:
			failed = append(failed, Problem{p, "it is no longer a regular file"})
			continue
		case h.Size != n.Stamp.Size:
			failed = append(failed, Problem{p, "it changed while it was being read"})
			if h.Size > n.Stamp.Size {
				// Do not read what was never announced.
				rest := make([]string, 0, len(left))
				for _, q := range files {
					if left[q] {
						rest = append(rest, q)
					}
				}
				stream.Close()
				if len(rest) == 0 {
					return failed, nil
				}
				more, err := receiveSome(ctx, g, root, rest, announced, take)
				return append(failed, more...), err
			}
			continue
		}
		if err := take(p, n, tr); err != nil {
			if ctx.Err() != nil {
				return failed, fault.From(ctx.Err())
			}
			var f *fileError
			if !errors.As(err, &f) {
				return failed, err
			}
			failed = append(failed, Problem{p, f.reason})
		}
	}
	if len(left) == 0 {
		return failed, nil
	}
	io.Copy(io.Discard, &ctxReader{ctx, io.LimitReader(stream, bound)}) //nolint:errcheck // only for the reasons that follow
	var said map[string]string
	if s, ok := stream.(interface{ Skipped() []string }); ok {
		said = reasonsOf(s.Skipped(), files)
	}
	for _, p := range files {
		if left[p] {
			why := "the guest did not send it"
			if said[p] != "" {
				why += ": " + said[p]
			}
			failed = append(failed, Problem{p, why})
		}
	}
	return failed, nil
}

func ctxErr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// fileError concerns one file and does not end a transfer.
type fileError struct{ reason string }

func (e *fileError) Error() string { return e.reason }

// writeTemp copies an announced file into a temporary file and checks size and
// hash. The caller commits it.
func writeTemp(dir *hostpath.Dir, n *Node, r io.Reader, mode fs.FileMode) (*hostpath.Temp, [sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	t, err := dir.Create(mode)
	if err != nil {
		return nil, sum, hostWriteError(err)
	}
	h := sha256.New()
	src := &readErr{r: r}
	size, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(t, h)}, src, make([]byte, 128<<10))
	if err != nil {
		t.Abort()
		if src.err != nil {
			return nil, sum, guestFault(src.err, "the archive from the guest is damaged")
		}
		return nil, sum, hostWriteError(err)
	}
	h.Sum(sum[:0])
	if size != n.size() || n.Hashed && sum != n.Hash {
		t.Abort()
		return nil, sum, &fileError{"it changed while it was being read"}
	}
	return t, sum, nil
}

// readErr remembers an error of the reading side.
type readErr struct {
	r   io.Reader
	err error
}

func (r *readErr) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// hostWriteError decides whether a failed write concerns one file or all.
func hostWriteError(err error) error {
	if isNoSpace(err) {
		return fault.Wrap(err, fault.InsufficientDisk, "the host's disk is full").
			Next("free space on the host and repeat the call: what was transferred is not transferred again")
	}
	return &fileError{describeError(err)}
}

// checkFree refuses a transfer that would fill the host's disk.
func checkFree(path string, need int64) error {
	free, err := host.DiskFree(path)
	if err != nil || need <= 0 {
		return nil // the write itself will tell
	}
	if free-need < minFree {
		return fault.New(fault.InsufficientDisk, "the files need %d bytes and %q has %d free", need, path, free).
			Because("a gibibyte has to stay free").
			Next("free space on the host, or leave large files out").
			With("required_bytes", need).With("free_bytes", free)
	}
	return nil
}

// plus adds sizes that a guest announced: a sum that no disk holds must not
// come out as a small one.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// minFree stays free on the host's disk, in bytes.
const minFree = 1 << 30

// guestMode is what is left of a guest's mode on the host.
func guestMode(n *Node) fs.FileMode {
	m := fs.FileMode(n.Mode) & 0o777
	if n.Kind == Dir {
		return m | 0o700
	}
	return m | 0o600
}

func unixNano(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// safeLink reports why a guest's symlink may not be made on the host. Only
// leading .. are allowed, so that no link on the way can lead it out: the
// directories above the link are real, and whatever links follow obey the same
// rule.
func safeLink(p, target string, trust func(string) (string, bool)) string {
	switch {
	case !hasExec:
		return "symbolic links are not made on this platform"
	case target == "" || len(target) > 4000 || strings.ContainsRune(target, 0):
		return "the link's target is not usable"
	case path.IsAbs(target) || strings.Contains(target, `\`):
		return "the link's target is absolute"
	case path.Clean(target) != strings.TrimSuffix(target, "/") && path.Clean(target) != strings.TrimPrefix(target, "./"):
		return "the link's target is not a plain relative path"
	case leavesTree(p, target):
		return "the link points out of the directory"
	}
	if why, refused := trust(path.Join(path.Dir(p), target)); refused {
		return "the link points to a place that is refused: " + why
	}
	return ""
}
