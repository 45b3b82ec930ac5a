package sandbox

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

const (
	defaultLogTail = 500
	maxLogTail     = 100_000
	defaultFollow  = 10 * time.Second
	maxFollow      = 10 * time.Minute
	// logsWithin bounds reading what is there already.
	logsWithin = 2 * time.Minute
	// endedByTimeout is timeout(1)'s exit code.
	endedByTimeout = 124
)

// What Docker takes for since: a time, seconds since 1970, or an age.
var logSince = regexp.MustCompile(`^(\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?|\d{1,12}(\.\d{1,9})?|(\d{1,9}(\.\d{1,9})?(h|m|s|ms))+)$`)

// logWindow is what of a log is asked for.
type logWindow struct {
	tail   int
	follow time.Duration // 0: what is there now
	since  string
}

func newLogWindow(tail *int, follow bool, seconds *float64, since string) (logWindow, error) {
	w := logWindow{tail: orDefault(tail, defaultLogTail), since: since}
	if w.tail < 0 || w.tail > maxLogTail {
		return w, fault.New(fault.InvalidArgument, "tail is %d; it must be from 0 to %d", w.tail, maxLogTail)
	}
	if since != "" && !logSince.MatchString(since) {
		return w, fault.New(fault.InvalidArgument, "since is %.80q; it must be a time such as 2026-01-02T15:04:05Z or an age such as 10m", since)
	}
	if follow {
		w.follow = defaultFollow
		if seconds != nil {
			if !(*seconds > 0) || *seconds > maxFollow.Seconds() {
				return w, fault.New(fault.InvalidArgument, "follow_seconds is %v; it must be more than 0 and at most %.0f", *seconds, maxFollow.Seconds())
			}
			w.follow = time.Duration(*seconds * float64(time.Second))
		}
	}
	return w, nil
}

// runLog runs a docker command that prints a log. Following one ends by itself
// in the guest when its time is over, which is its normal end.
func (d *dockerCall) runLog(ctx context.Context, w logWindow, r dockerRun) (*CommandResult, error) {
	r.timeout = logsWithin
	if w.follow > 0 {
		r.within = w.follow
		r.timeout = w.follow + logsWithin
	}
	res, err := d.run(ctx, r)
	if err == nil && w.follow > 0 && res.ExitCode == endedByTimeout {
		res.ExitCode = 0
	}
	return res, err
}

// endAfter has the guest end a command after a time: TERM, then KILL.
func endAfter(t time.Duration, argv []string) []string {
	secs := strconv.FormatFloat(t.Seconds(), 'f', 3, 64)
	return append([]string{"timeout", "--kill-after=5", secs}, argv...)
}

// DockerLogs reads a container's output. With follow it reads for a bounded
// time and returns what came.
func (s *Service) DockerLogs(ctx context.Context, r DockerLogsRequest) (*DockerLogsResult, error) {
	w, err := newLogWindow(r.Tail, r.Follow, r.FollowSeconds, r.Since)
	if err != nil {
		return nil, err
	}
	if err := checkContainerName("container", r.Container); err != nil {
		return nil, err
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	c, err := d.container(ctx, r.Container)
	if err != nil {
		return nil, err
	}
	since, err := w.engineSince(s.now())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	out, errs := newClip(defaultOutputBytes), newClip(defaultOutputBytes)
	work, cancel := context.WithTimeout(ctx, logsWithin)
	defer cancel()
	if w.follow > 0 {
		work, cancel = context.WithTimeout(ctx, w.follow)
		defer cancel()
	}
	err = d.engine.Logs(work, docker.Logs{Container: c.ID, TTY: c.TTY, Tail: w.tail, Follow: w.follow > 0, Since: since}, func(stream int, data []byte) {
		if stream == docker.StreamStderr {
			errs.write(data)
			return
		}
		out.write(data)
	})
	if err != nil && !(w.follow > 0 && work.Err() != nil && ctx.Err() == nil) {
		return nil, d.engineFault(ctx, "reading the container's log", err)
	}
	res := DockerLogsResult{InstanceID: r.InstanceID, Container: r.Container}
	same := docker.Logs{Container: r.Container, Tail: w.tail, Follow: w.follow > 0, Since: w.since}
	res.CommandResult = *commandResult(shellQuote(append([]string{"docker"}, same.Args()...)), "", guest.Process{Status: guest.StatusExited}, out, errs)
	res.DurationMS = time.Since(began).Milliseconds()
	return &res, nil
}

// engineSince is since as the engine takes it: seconds since 1970.
func (w logWindow) engineSince(now time.Time) (string, error) {
	if w.since == "" {
		return "", nil
	}
	if age, err := time.ParseDuration(w.since); err == nil {
		now = now.Add(-age)
		return fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond()), nil
	}
	if _, err := strconv.ParseFloat(w.since, 64); err == nil {
		return w.since, nil
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04Z07:00", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(form, w.since); err == nil {
			return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()), nil
		}
	}
	return "", fault.New(fault.InvalidArgument, "since is %.80q; it must be a time such as 2026-01-02T15:04:05Z or an age such as 10m", w.since)
}
