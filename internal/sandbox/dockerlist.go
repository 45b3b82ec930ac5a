package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sandboxforge/internal/docker"
)

// listed is the CMD part of a tool that asked the engine instead of starting
// the docker program: the command that would show the same, and its table.
func listed(began time.Time, command string, rows [][]string) CommandResult {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	w.Flush()
	out := newClip(defaultOutputBytes)
	out.write([]byte(b.String()))
	res := CommandResult{Command: command, DurationMS: time.Since(began).Milliseconds(), StdoutBytes: out.total}
	var utf8 bool
	res.Stdout, res.StdoutTruncated, utf8 = out.text()
	res.NotUTF8 = !utf8
	return res
}

// cell keeps what a guest says within its column.
func cell(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return clipText(s, most)
}

// Bounds of what is passed on of an object's labels, which the guest wrote: their
// number, the bytes of one, and of all.
const (
	maxLabels     = 200
	maxLabelBytes = 4 << 10
	maxLabelsSize = 32 << 10
)

// clipLabels is labels within these bounds, the first ones by name.
func clipLabels(labels map[string]string) map[string]string {
	out, size := map[string]string{}, 0
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		name, value := clipText(k, maxLabelBytes), clipText(labels[k], maxLabelBytes)
		if size += len(name) + len(value); len(out) == maxLabels || size > maxLabelsSize {
			break
		}
		out[name] = value
	}
	return out
}

// DockerPS lists the containers of an instance.
func (s *Service) DockerPS(ctx context.Context, r DockerPSRequest) (*DockerPSResult, error) {
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	began := time.Now()
	list, err := d.engine.Containers(ctx, r.All)
	if err != nil {
		return nil, d.engineFault(ctx, "listing the containers", err)
	}
	command := "docker ps"
	if r.All {
		command += " --all"
	}
	views := make([]Container, 0, len(list))
	rows := [][]string{{"CONTAINER ID", "IMAGE", "COMMAND", "CREATED", "STATUS", "PORTS", "NAMES"}}
	for _, c := range list {
		rows = append(rows, []string{cell(c.ID[:min(12, len(c.ID))], 12), cell(c.Image, 60), fmt.Sprintf("%q", cell(c.Command, 30)),
			isoTime(c.Created), cell(c.Status, 40), cell(strings.Join(c.Ports, ", "), 80), cell(c.Name, 80)})
		views = append(views, Container{ID: c.ID, Name: c.Name, Image: c.Image, ImageID: c.ImageID, Command: c.Command, State: c.State,
			Status: c.Status, CreatedAt: isoTime(c.Created), Ports: c.Ports, Labels: clipLabels(c.Labels), Networks: c.Networks})
	}
	return &DockerPSResult{InstanceID: r.InstanceID, All: r.All, Containers: views, CommandResult: listed(began, command, rows)}, nil
}

// DockerImages lists the images of an instance.
func (s *Service) DockerImages(ctx context.Context, r DockerImagesRequest) (*DockerImagesResult, error) {
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	began := time.Now()
	list, err := d.engine.Images(ctx)
	if err != nil {
		return nil, d.engineFault(ctx, "listing the images", err)
	}
	views := make([]Image, 0, len(list))
	rows := [][]string{{"IMAGE", "IMAGE ID", "CREATED", "SIZE"}}
	for _, i := range list {
		rows = append(rows, imageRows(i)...)
		views = append(views, Image{ID: i.ID, Tags: i.Tags, Digests: i.Digests, CreatedAt: isoTime(i.Created), SizeBytes: i.Size, Labels: clipLabels(i.Labels)})
	}
	return &DockerImagesResult{InstanceID: r.InstanceID, Images: views, CommandResult: listed(began, "docker images", rows)}, nil
}

func imageRows(i docker.Image) [][]string {
	id := strings.TrimPrefix(i.ID, "sha256:")
	tags := i.Tags
	if len(tags) == 0 {
		tags = []string{"<none>"}
	}
	var rows [][]string
	for _, t := range tags {
		rows = append(rows, []string{cell(t, 120), cell(id[:min(12, len(id))], 12), isoTime(i.Created), fmt.Sprintf("%.1f MB", float64(i.Size)/1e6)})
	}
	return rows
}
