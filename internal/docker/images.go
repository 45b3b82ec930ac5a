package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Image is an image that the engine has.
type Image struct {
	ID      string
	Tags    []string // references, "name:tag"
	Digests []string
	Created time.Time
	Size    int64
	Labels  map[string]string
}

// Images lists the images that have every label ("key" or "key=value"), newest
// first.
func (e *Engine) Images(ctx context.Context, labels ...string) ([]Image, error) {
	var rows bounded[struct {
		ID          string `json:"Id"`
		RepoTags    []string
		RepoDigests []string
		Created     int64
		Size        int64
		Labels      map[string]string
	}]
	q := url.Values{"filters": {labelFilter(labels)}}
	if err := e.do(ctx, http.MethodGet, "/images/json?"+q.Encode(), nil, &rows); err != nil {
		return nil, err
	}
	list := make([]Image, 0, len(rows))
	for _, r := range rows {
		list = append(list, image(r.ID, r.RepoTags, r.RepoDigests, time.Unix(r.Created, 0).UTC(), r.Size, r.Labels))
	}
	return list, nil
}

// Image describes one image by reference or id. A missing one is ErrNotFound.
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	var r struct {
		ID          string `json:"Id"`
		RepoTags    []string
		RepoDigests []string
		Created     time.Time
		Size        int64
		Config      struct{ Labels map[string]string }
	}
	if err := e.do(ctx, http.MethodGet, "/images/"+escapeReference(ref)+"/json", nil, &r); err != nil {
		return Image{}, err
	}
	return image(r.ID, r.RepoTags, r.RepoDigests, r.Created.UTC(), r.Size, r.Config.Labels), nil
}

func image(id string, tags, digests []string, created time.Time, size int64, labels map[string]string) Image {
	i := Image{ID: id, Tags: []string{}, Digests: []string{}, Created: created, Size: size, Labels: labels}
	for _, t := range tags {
		if t != "<none>:<none>" {
			i.Tags = append(i.Tags, t)
		}
	}
	i.Digests = append(i.Digests, digests...)
	if i.Labels == nil {
		i.Labels = map[string]string{}
	}
	return i
}

// TagImage gives an image one more reference.
func (e *Engine) TagImage(ctx context.Context, id, ref string) error {
	repo, tag := splitTag(ref)
	q := url.Values{"repo": {repo}, "tag": {tag}}
	return e.do(ctx, http.MethodPost, "/images/"+escapeReference(id)+"/tag?"+q.Encode(), nil, nil)
}

// PullImage fetches an image from its registry; step hears what it does. It
// ends when ctx does. An error that the engine reports within the stream is
// returned.
func (e *Engine) PullImage(ctx context.Context, ref string, step func(string)) error {
	repo, tag := splitTag(ref)
	q := url.Values{"fromImage": {repo}, "tag": {tag}}
	resp, err := e.send(ctx, http.MethodPost, "/images/create?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// A line per step; a hostile engine may send them for ever, and ctx ends it.
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxStep)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var m struct {
			Status   string `json:"status"`
			ID       string `json:"id"`
			Progress string `json:"progress"`
			Error    string `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("pulling %s: %w", ref, err)
		}
		if m.Error != "" {
			return fmt.Errorf("pulling %s: %s", ref, shown(m.Error, maxMessage))
		}
		if step != nil {
			step(shown(strings.TrimSpace(m.ID+" "+m.Status+" "+m.Progress), 200))
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("pulling %s: %w", ref, err)
	}
	return nil
}

// maxStep bounds one line of what a pull says.
const maxStep = 256 << 10

// splitTag separates "name:tag" or "name@digest"; a name alone is latest.
func splitTag(ref string) (repo, tag string) {
	if name, digest, ok := strings.Cut(ref, "@"); ok {
		return name, digest
	}
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i], ref[i+1:]
	}
	return ref, "latest"
}

// escapeReference keeps the slashes of a reference, which the API's paths
// have as they are.
func escapeReference(ref string) string {
	parts := strings.Split(ref, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}
