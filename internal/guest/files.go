package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
)

// FileType is what kind of thing a path names.
type FileType int

// The types.
const (
	TypeUnknown FileType = iota // an Entry that only carries an Error
	TypeRegular
	TypeDir
	TypeSymlink
	TypeOther
)

// Entry describes one path in the guest. Paths are bytes, not necessarily
// UTF-8; they are clean, and relative ones never lead out of their root.
type Entry struct {
	Path       string
	Type       FileType
	Mode       uint32 // st_mode & 07777
	Size       int64
	MTime      time.Time
	CTime      time.Time
	Inode      uint64
	SHA256     []byte // if asked for, regular files only
	LinkTarget string
	UID, GID   uint32
	Error      string // what could not be read, and why
}

// entry checks and converts an entry. With relative, "." is the root itself.
func entry(op string, e *guestv1.Entry, relative bool) (Entry, error) {
	name := string(e.GetPath())
	if !cleanName(name, relative) {
		return Entry{}, protocolError(op, "path %.200q", name)
	}
	if e.Type < 0 || e.Type > guestv1.FileType_FILE_TYPE_OTHER || int64(e.Size) < 0 || len(e.Sha256) != 0 && len(e.Sha256) != 32 || e.Mode > 0o7777 {
		return Entry{}, protocolError(op, "an impossible description of %.200q", name)
	}
	if strings.IndexByte(string(e.LinkTarget), 0) >= 0 {
		return Entry{}, protocolError(op, "a NUL in the link %.200q", name)
	}
	return Entry{
		Path: name, Type: FileType(e.Type), Mode: e.Mode, Size: int64(e.Size),
		MTime: time.Unix(0, e.MtimeUnixNs), CTime: time.Unix(0, e.CtimeUnixNs), Inode: e.Inode,
		SHA256: e.Sha256, LinkTarget: string(e.LinkTarget), UID: e.Uid, GID: e.Gid, Error: line(e.Error),
	}, nil
}

// cleanName says whether a name is clean and of the asked kind.
func cleanName(name string, relative bool) bool {
	if name == "" || strings.IndexByte(name, 0) >= 0 || path.Clean(name) != name {
		return false
	}
	if !relative {
		return name[0] == '/'
	}
	return name[0] != '/' && name != ".." && !strings.HasPrefix(name, "../")
}

func entries(op string, in []*guestv1.Entry, relative bool) ([]Entry, error) {
	out := make([]Entry, 0, len(in))
	for _, e := range in {
		conv, err := entry(op, e, relative)
		if err != nil {
			return nil, err
		}
		out = append(out, conv)
	}
	return out, nil
}

func (e Entry) proto() *guestv1.Entry {
	return &guestv1.Entry{
		Path: []byte(e.Path), Type: guestv1.FileType(e.Type), Mode: e.Mode, Size: uint64(e.Size),
		MtimeUnixNs: e.MTime.UnixNano(), CtimeUnixNs: e.CTime.UnixNano(), Inode: e.Inode,
	}
}

// Stat describes one path, symlinks not followed; ErrNotFound if it is missing.
func (c *Client) Stat(ctx context.Context, name string, hash bool) (Entry, error) {
	r, err := c.files.Stat(ctx, &guestv1.StatRequest{Path: []byte(name), Hash: hash})
	if err != nil {
		return Entry{}, fail(ctx, "stat", false, err)
	}
	return entry("stat", r.Entry, false)
}

// TreeRequest says what to walk.
type TreeRequest struct {
	Root    string
	Exclude []string // gitignore syntax, relative to Root
	Hash    bool     // hash every regular file
	// HashUnless names files whose hash the caller knows as long as size,
	// times and inode are these: they come without one.
	HashUnless []Entry
	MaxEntries uint64 // 0: one million
}

const defaultTreeEntries = 1_000_000

// Tree walks a directory, parents before children. What could not be read is
// an Entry with Error set. A walk that fails ends with an error, one that hit
// the limit with ErrTruncated.
func (c *Client) Tree(ctx context.Context, req TreeRequest) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		const op = "list tree"
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		m := &guestv1.TreeRequest{Root: []byte(req.Root), Exclude: req.Exclude, Hash: req.Hash, MaxEntries: req.MaxEntries}
		for _, e := range req.HashUnless {
			m.HashUnless = append(m.HashUnless, e.proto())
		}
		stream, err := c.files.Tree(ctx, m)
		if err != nil {
			yield(Entry{}, fail(ctx, op, false, err))
			return
		}
		defer stream.Close()
		limit := req.MaxEntries
		if limit == 0 {
			limit = defaultTreeEntries
		}
		names := 0 // bytes
		for stream.Receive() {
			for _, e := range stream.Msg().Entries {
				if limit == 0 {
					yield(Entry{}, protocolError(op, "more entries than asked for"))
					return
				}
				limit--
				if names += len(e.Path) + len(e.LinkTarget); names > maxTreeText {
					yield(Entry{}, &Error{Op: op, Kind: ErrTruncated, Err: fmt.Errorf("more than %d bytes of names", maxTreeText)})
					return
				}
				conv, err := entry(op, e, true)
				if !yield(conv, err) || err != nil {
					return
				}
			}
			if stream.Msg().Truncated {
				yield(Entry{}, &Error{Op: op, Kind: ErrTruncated})
				return
			}
		}
		if err := stream.Err(); err != nil {
			yield(Entry{}, fail(ctx, op, false, err))
		}
	}
}

// GlobMatch is what one pattern matched.
type GlobMatch struct {
	Pattern string
	Entries []Entry // absolute paths, sorted
	Error   string  // a bad pattern, an unreadable directory, or a list cut off
}

// Glob expands patterns (path.Match plus **), absolute or relative to base. At
// most limit entries come back in all; 0 is the agent's own limit.
func (c *Client) Glob(ctx context.Context, base string, patterns []string, limit uint64) ([]GlobMatch, error) {
	const op = "glob"
	r, err := c.files.Glob(ctx, &guestv1.GlobRequest{Base: []byte(base), Patterns: patterns, MaxMatches: limit})
	if err != nil {
		return nil, fail(ctx, op, false, err)
	}
	if len(r.Matches) != len(patterns) {
		return nil, protocolError(op, "%d answers to %d patterns", len(r.Matches), len(patterns))
	}
	out := make([]GlobMatch, len(patterns))
	for i, m := range r.Matches {
		out[i] = GlobMatch{Pattern: patterns[i], Error: line(m.GetError())}
		if out[i].Entries, err = entries(op, m.GetEntries(), false); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// PutTar says where a tar stream goes.
type PutTar struct {
	Root         string   // made if missing
	Owner        string   // user name; empty: sandbox
	KeepExisting bool     // an existing file is not replaced but reported
	RemoveFirst  []string // relative; files, or directories if they are empty
}

// PutResult is what was unpacked.
type PutResult struct {
	Files   uint64
	Bytes   uint64
	Entries []Entry  // relative, as they now are in the guest
	Skipped []string // "path: reason"
}

// tarMessage is how much of a tar stream goes into one message.
const tarMessage = 128 << 10

// PutTar unpacks a tar stream in the guest. Each file appears whole or not at
// all. An error of r itself is returned as it is; what was unpacked before it
// stays.
func (c *Client) PutTar(ctx context.Context, open PutTar, r io.Reader) (PutResult, error) {
	const op = "put files"
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.files.PutTar(sctx)
	if err != nil {
		return PutResult{}, fail(ctx, op, false, err)
	}
	m := &guestv1.PutTarOpen{Root: []byte(open.Root), Owner: open.Owner, KeepExisting: open.KeepExisting}
	for _, p := range open.RemoveFirst {
		m.RemoveFirst = append(m.RemoveFirst, []byte(p))
	}
	err = stream.Send(&guestv1.PutTarRequest{Event: &guestv1.PutTarRequest_Open{Open: m}})
	buf := make([]byte, tarMessage)
	data := &guestv1.PutTarRequest_Data{}
	for err == nil {
		n, rerr := io.ReadFull(r, buf)
		if n > 0 {
			data.Data = buf[:n]
			err = stream.Send(&guestv1.PutTarRequest{Event: data})
		}
		if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) {
			break
		}
		if rerr != nil {
			cancel()
			stream.CloseAndReceive() //nolint:errcheck // cancelled
			return PutResult{}, rerr
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		// The answer, if there is one, says more.
		if _, aerr := stream.CloseAndReceive(); aerr != nil && connect.IsWireError(aerr) {
			err = aerr
		}
		return PutResult{}, fail(ctx, op, true, err)
	}
	res, err := stream.CloseAndReceive()
	if err != nil {
		return PutResult{}, fail(ctx, op, true, err)
	}
	out := PutResult{Files: res.Files, Bytes: res.Bytes}
	for _, s := range res.Skipped {
		out.Skipped = append(out.Skipped, line(s))
	}
	out.Entries, err = entries(op, res.Entries, true)
	return out, err
}

// GetTar says what to pack.
type GetTar struct {
	Root     string
	Paths    []string // relative; empty: all of Root
	Exclude  []string // gitignore syntax
	MaxBytes uint64   // of the stream; more: ErrTooLarge. 0: no bound
}

// TarStream is a tar stream from the guest. It is the guest's word: a reader
// checks every name and type in it.
type TarStream struct {
	ctx     context.Context
	cancel  context.CancelFunc
	stream  *connect.ServerStreamForClient[guestv1.GetTarResponse]
	rest    []byte
	n, max  uint64
	skipped []string
	said    int // bytes of skipped
	err     error
}

// GetTar starts a tar stream. The caller closes it. A stream that breaks fails
// its Read; it does not look like a short tar.
func (c *Client) GetTar(ctx context.Context, req GetTar) (*TarStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	m := &guestv1.GetTarRequest{Root: []byte(req.Root), Exclude: req.Exclude, MaxBytes: req.MaxBytes}
	for _, p := range req.Paths {
		m.Paths = append(m.Paths, []byte(p))
	}
	stream, err := c.files.GetTar(ctx, m)
	if err != nil {
		defer cancel()
		return nil, fail(ctx, "get files", false, err)
	}
	return &TarStream{ctx: ctx, cancel: cancel, stream: stream, max: req.MaxBytes}, nil
}

// Read implements io.Reader.
func (t *TarStream) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if t.err != nil {
			return 0, t.err
		}
		if !t.stream.Receive() {
			t.err = io.EOF
			if err := t.stream.Err(); err != nil {
				t.err = fail(t.ctx, "get files", false, err)
			}
			continue
		}
		m := t.stream.Msg()
		for _, s := range m.Skipped {
			s = line(s)
			if t.said += len(s) + 16; t.said > maxSkipped {
				t.err = protocolError("get files", "more than %d bytes of reports", maxSkipped)
				break
			}
			t.skipped = append(t.skipped, s)
		}
		t.rest = m.Data
		t.n += uint64(len(m.Data))
		if t.max > 0 && t.n > t.max {
			t.rest, t.err = nil, &Error{Op: "get files", Kind: ErrTooLarge, Err: fmt.Errorf("more than %d bytes", t.max)}
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Skipped names what was asked for and is not, or not faithfully, in the
// stream ("path: reason"). It is complete after Read has returned io.EOF.
func (t *TarStream) Skipped() []string { return t.skipped }

// Close ends the stream.
func (t *TarStream) Close() error {
	t.cancel()
	t.stream.Close() //nolint:errcheck // cancelled
	return nil
}

// ReadFile reads a whole file, symlinks followed; one larger than limit bytes
// is ErrTooLarge. A file that is replaced meanwhile may come out mixed.
func (c *Client) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	const op = "read file"
	var out []byte
	for {
		r, err := c.files.Read(ctx, &guestv1.ReadFileRequest{Path: []byte(name), Offset: uint64(len(out)), MaxBytes: 1 << 20})
		if err != nil {
			return nil, fail(ctx, op, false, err)
		}
		if len(r.Data) > 1<<20 {
			return nil, protocolError(op, "%d bytes at once", len(r.Data))
		}
		out = append(out, r.Data...)
		if int64(len(out)) > limit {
			return nil, &Error{Op: op, Kind: ErrTooLarge, Err: fmt.Errorf("%s is larger than %d bytes", name, limit)}
		}
		// Files of /proc have no size: an empty answer is the end.
		if len(r.Data) == 0 || r.Size > 0 && uint64(len(out)) >= r.Size {
			return out, nil
		}
	}
}

// WriteFile writes a file of up to 1 MiB whole and atomically. A mode of 0 is
// 0644; an empty owner is the user sandbox.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte, mode uint32, owner string) error {
	_, err := c.files.Write(ctx, &guestv1.WriteFileRequest{Path: []byte(name), Data: data, Mode: mode, Owner: owner})
	return fail(ctx, "write file", true, err)
}

// RemoveResult is what was removed.
type RemoveResult struct {
	Removed []string
	Failed  []string // "path: reason"
}

// Remove removes paths below root: files, and directories if they are empty or
// recursive is set. A missing path is neither removed nor failed.
func (c *Client) Remove(ctx context.Context, root string, paths []string, recursive bool) (RemoveResult, error) {
	const op = "remove"
	req := &guestv1.RemoveRequest{Root: []byte(root), Recursive: recursive}
	asked := make(map[string]bool, len(paths))
	for _, p := range paths {
		req.Paths = append(req.Paths, []byte(p))
		asked[p] = true
	}
	r, err := c.files.Remove(ctx, req)
	if err != nil {
		return RemoveResult{}, fail(ctx, op, true, err)
	}
	var out RemoveResult
	for _, p := range r.Removed {
		if !asked[string(p)] {
			return RemoveResult{}, protocolError(op, "%.200q was not to be removed", p)
		}
		out.Removed = append(out.Removed, string(p))
	}
	for _, s := range r.Failed {
		out.Failed = append(out.Failed, line(s))
	}
	return out, nil
}

// MakeDir makes a directory and its parents and says whether the owner can
// write in it. A mode of 0 is 0755.
func (c *Client) MakeDir(ctx context.Context, name string, mode uint32, owner string) (writable bool, err error) {
	r, err := c.files.MakeDir(ctx, &guestv1.MakeDirRequest{Path: []byte(name), Mode: mode, Owner: owner})
	if err != nil {
		return false, fail(ctx, "make directory", true, err)
	}
	return r.Writable, nil
}
