package workspace

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
)

// UpResult says what a sync to the guest did.
type UpResult struct {
	ArchiveBytes   int64      `json:"archive_bytes"` // of the tar streams
	Exclude        []string   `json:"exclude"`       // effective
	FilesSent      int        `json:"files_sent"`
	FilesUnchanged int        `json:"files_unchanged"`
	FilesDeleted   int        `json:"files_deleted"`
	Conflicts      []Conflict `json:"conflicts"`
	// GuestChanged are files that only the guest has changed since the last
	// sync; they were left alone. At most 1000 are listed.
	GuestChanged []string  `json:"guest_changed"`
	Skipped      []Problem `json:"skipped"`
	Notes        []string  `json:"notes"`
	Status       string    `json:"status"` // ok, conflicts, partial
}

// maxListed bounds lists that are only for information.
const maxListed = 1000

// Up sends what is new or changed on the host. It fails only as a whole: no
// local directory, no guest, no manifest. Single files end in Conflicts or
// Skipped. After a cancel or a lost connection each file in the guest is the
// old or the new one, and another call goes on from there.
func Up(ctx context.Context, r Request) (*UpResult, error) {
	u := &uploader{req: &r, res: &UpResult{Conflicts: []Conflict{}, GuestChanged: []string{}, Skipped: []Problem{}, Notes: []string{}},
		streamed: map[string]bool{}, restarts: map[string]int{}}
	for {
		err := u.once(ctx)
		if errors.Is(err, errRestart) {
			continue // bounded: each round counts against a file that leaveOut drops
		}
		if err != nil {
			return nil, err
		}
		return u.res, nil
	}
}

type uploader struct {
	req      *Request
	res      *UpResult
	streamed map[string]bool // in earlier rounds
	restarts map[string]int
}

// A file that has changed maxRestarts times while it was sent is left out, and
// after maxRounds in all one change is enough.
const (
	maxRestarts = 2
	maxRounds   = 10
)

// leaveOut takes those files out of the tree that the plan would send once more
// although they do not keep still, and reports whether there were any.
func (u *uploader) leaveOut(host Tree, pl *plan) bool {
	rounds := 0
	for _, n := range u.restarts {
		rounds += n
	}
	limit := maxRestarts
	if rounds >= maxRounds {
		limit = 1
	}
	found := false
	for _, p := range pl.write {
		if u.restarts[p] >= limit && host[p].Kind == File {
			host[p] = &Node{Kind: Other, Err: errChanging.Error()}
			u.res.Skipped = append(u.res.Skipped, Problem{p, errChanging.Error()})
			found = true
		}
	}
	return found
}

func (u *uploader) once(ctx context.Context) error {
	s, err := openSession(ctx, u.req, true)
	if err != nil {
		return err
	}
	defer s.close()
	res := u.res
	res.Exclude = s.host.exclude
	res.Skipped = append([]Problem{}, s.host.skipped...)
	pl := makePlan(s.anc, s.host.tree, s.guest.tree, true, Fail)
	if u.leaveOut(s.host.tree, pl) {
		pl = makePlan(s.anc, s.host.tree, s.guest.tree, true, Fail)
	}
	res.Conflicts = append([]Conflict{}, pl.conflicts...)
	res.FilesUnchanged = pl.unchanged
	res.GuestChanged = append([]string{}, pl.kept[:min(len(pl.kept), maxListed)]...)
	res.FilesSent = 0
	for _, p := range pl.adopt {
		if u.streamed[p] {
			res.FilesSent++
			res.FilesUnchanged--
		}
	}
	res.Notes = notesOf(s.host.tree)
	s.adopt(pl.adopt)
	s.forget(pl.forget)

	err = u.remove(ctx, s, pl)
	if err == nil {
		err = u.send(ctx, s, pl)
	}
	if serr := s.save(); err == nil {
		err = serr
	}
	res.Status = "ok"
	switch {
	case len(res.Conflicts) > 0:
		res.Status = "conflicts"
	case len(res.Skipped) > 0:
		res.Status = "partial"
	}
	return err
}

// remove deletes in the guest what the plan removes.
func (u *uploader) remove(ctx context.Context, s *session, pl *plan) error {
	if len(pl.remove) == 0 {
		return nil
	}
	for rest := pl.remove; len(rest) > 0; {
		chunk := rest[:min(len(rest), removeChunk)]
		rest = rest[len(chunk):]
		_, failed, err := s.Guest.Remove(ctx, s.remote, chunk, false)
		if err != nil {
			return guestFault(err, "files cannot be removed from %q in the guest", s.remote)
		}
		u.removed(s, pl, chunk, reasonsOf(failed, chunk))
	}
	return nil
}

// removeChunk is how many paths one call removes.
const removeChunk = 5000

func (u *uploader) removed(s *session, pl *plan, paths []string, left map[string]string) {
	for _, p := range paths {
		isDir := s.anc[p] != nil && s.anc[p].Kind == Dir
		why, bad := left[p]
		switch {
		case bad && !isDir: // a directory that is not empty has the guest's own files
			u.res.Skipped = append(u.res.Skipped, Problem{p, "not removed from the guest: " + why})
			continue
		case !bad && !isDir && !pl.replaced[p]:
			u.res.FilesDeleted++
		}
		if !pl.replaced[p] {
			delete(s.anc, p)
		}
	}
}

// reasonsOf finds the reasons that a guest gave for paths, as "path" or
// "path: reason".
func reasonsOf(said []string, paths []string) map[string]string {
	if len(said) == 0 {
		return nil
	}
	known := make(map[string]bool, len(paths))
	for _, p := range paths {
		known[p] = true
	}
	m := map[string]string{}
	for _, text := range said {
		if known[text] {
			m[text] = "the guest kept it"
			continue
		}
		for i := 0; i < len(text); {
			j := strings.Index(text[i:], ": ")
			if j < 0 {
				break
			}
			if p := text[:i+j]; known[p] {
				m[p] = clip(text[i+j+2:])
				break
			}
			i += j + 2
		}
	}
	return m
}

func (u *uploader) send(ctx context.Context, s *session, pl *plan) error {
	if len(pl.write) == 0 {
		if s.guest.missing { // an empty directory is to be there too
			_, err := s.Guest.PutTar(ctx, PutTar{Root: s.remote, Owner: s.Owner}, emptyTar())
			if err != nil {
				return guestFault(err, "%q cannot be made in the guest", s.remote)
			}
		}
		return nil
	}
	snd := newSender(ctx, s.root, s.host.tree, s.Guest, s.remote, s.Owner, s.Progress)
	var fresh, over []string
	intents := 0
	for _, p := range pl.write {
		n := s.host.tree[p]
		if n.Kind == File {
			snd.total += n.Stamp.Size
		}
		if pl.replaced[p] {
			over = append(over, p)
			continue
		}
		fresh = append(fresh, p)
		if s.anc[p] == nil {
			intents++
			s.anc[p] = &Ancestor{Kind: n.Kind, Size: n.size(), Target: n.Target, Put: true, Pending: true}
		}
	}
	if intents > 0 {
		if err := s.save(); err != nil {
			return err
		}
	}
	err := u.stream(s, snd, over, false)
	if err == nil {
		err = u.stream(s, snd, fresh, true)
	}
	u.res.ArchiveBytes += snd.bytes
	u.res.Skipped = append(u.res.Skipped, snd.failed...)
	u.settle(s, snd, fresh)
	if errors.Is(err, errRestart) {
		u.restarts[snd.changed]++
		for _, p := range snd.order {
			u.streamed[p] = s.host.tree[p].Kind == File
		}
	}
	return err
}

// stream sends one group and records what the guest confirmed.
func (u *uploader) stream(s *session, snd *sender, paths []string, keep bool) error {
	if len(paths) == 0 {
		return nil
	}
	res, err := snd.put(paths, keep)
	if err != nil {
		return err
	}
	confirmed := make(map[string]Entry, len(res.Entries))
	for _, e := range res.Entries {
		confirmed[path.Clean(e.Path)] = e
	}
	kept := reasonsOf(res.Skipped, paths)
	for _, p := range paths {
		n := snd.sent[p]
		if n == nil {
			continue // failed to be read
		}
		e, ok := confirmed[p]
		why, refused := kept[p]
		switch {
		case n.Kind == File && ok && e.Size == n.size():
			u.res.FilesSent++
			s.record(p, n, &Node{Stamp: guestStamp(e)}, true)
		case n.Kind != File && !refused:
			if n.Kind == Symlink {
				u.res.FilesSent++
			}
			s.record(p, n, nil, true)
		case n.Kind == Dir: // it appeared meanwhile
			s.record(p, n, nil, false)
		case refused && keep:
			u.res.Conflicts = append(u.res.Conflicts, Conflict{Path: p, Reason: "appeared in the guest while the sync ran: " + why, Host: "created", Guest: "created"})
			delete(s.anc, p)
		default:
			if why == "" {
				why = "the guest did not confirm it"
			}
			u.res.Skipped = append(u.res.Skipped, Problem{p, "not written in the guest: " + why})
			if a := s.anc[p]; a != nil && a.Pending {
				delete(s.anc, p)
			}
		}
	}
	return nil
}

// settle turns the intents that are left into what is known: sent and not
// confirmed, or never sent.
func (u *uploader) settle(s *session, snd *sender, fresh []string) {
	for _, p := range fresh {
		a := s.anc[p]
		if a == nil || !a.Pending {
			continue
		}
		n := snd.sent[p]
		if n == nil {
			delete(s.anc, p)
			continue
		}
		s.record(p, n, nil, true)
		s.anc[p].Pending = n.Kind == File
	}
}

// notesOf says what the user may not expect.
func notesOf(t Tree) []string {
	var out []string
	for p, n := range t {
		if n.Kind == Symlink && leavesTree(p, n.Target) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return []string{}
	}
	slices.SortFunc(out, comparePaths)
	shown := out[:min(len(out), 10)]
	return []string{"sent as symbolic links, though they point out of the directory: " + clip(strings.Join(shown, ", "))}
}

// leavesTree reports whether a symlink at p, as it is written, points out of
// the tree.
func leavesTree(p, target string) bool {
	if path.IsAbs(target) || strings.Contains(target, `\`) {
		return true
	}
	to := path.Join(path.Dir(p), target)
	return to == ".." || strings.HasPrefix(to, "../")
}

func emptyTar() *strings.Reader { return strings.NewReader(strings.Repeat("\x00", 1024)) }
