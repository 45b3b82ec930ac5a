package guest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/guest/guestv1/guestv1connect"
)

// baseURL names the agent; the round-tripper decides where it is.
const baseURL = "http://guest"

// Client is the guest protocol. It is safe for concurrent use and holds no
// connection of its own.
type Client struct {
	rt     http.RoundTripper
	system guestv1connect.SystemClient
	procs  guestv1connect.ProcessesClient
	files  guestv1connect.FilesClient
	dialer guestv1connect.DialerClient
}

// NewClient makes a client over any HTTP/2 round-tripper that reaches an agent.
func NewClient(rt http.RoundTripper) *Client {
	// Not http.Client: its redirects and cookies have no place here.
	hc := doer{rt}
	opts := []connect.ClientOption{
		connect.WithCodec(codec{}),
		connect.WithReadMaxBytes(maxAnswer),
		connect.WithAcceptCompression("gzip", nil, nil),
	}
	return &Client{
		rt:     rt,
		system: guestv1connect.NewSystemClient(hc, baseURL, opts...),
		procs:  guestv1connect.NewProcessesClient(hc, baseURL, opts...),
		files:  guestv1connect.NewFilesClient(hc, baseURL, opts...),
		dialer: guestv1connect.NewDialerClient(hc, baseURL, opts...),
	}
}

type doer struct{ rt http.RoundTripper }

func (d doer) Do(req *http.Request) (*http.Response, error) {
	resp, err := d.rt.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(headerUnsent) != "" {
		resp.Body.Close()
		return nil, &unsentError{errors.New("the other end of the proxy has no link")}
	}
	if err == nil {
		boundErrors(resp)
	}
	return resp, err
}

// Ping is the answer to a ping.
type Ping struct {
	AgentVersion string
	BootID       string
}

// Ping asks whether the agent answers.
func (c *Client) Ping(ctx context.Context) (Ping, error) {
	r, err := c.system.Ping(ctx, &guestv1.PingRequest{})
	if err != nil {
		return Ping{}, fail(ctx, "ping", false, err)
	}
	return Ping{AgentVersion: line(r.AgentVersion), BootID: line(r.BootId)}, nil
}

// Info describes the guest. Sizes are in bytes.
type Info struct {
	AgentVersion     string
	ProtocolVersion  uint32
	BootID           string
	MachineID        string
	Hostname         string
	Kernel           string
	OS               string
	Arch             string // GOARCH names
	CPUs             uint32
	MemoryBytes      uint64
	MemoryAvailable  uint64
	RootSize         uint64
	RootFree         uint64
	Uptime           time.Duration
	Time             time.Time
	RootDeviceLarger bool   // the block device is larger than the file system on it
	RootDeviceBytes  uint64 // 0: not known
}

// Info asks for a description of the guest.
func (c *Client) Info(ctx context.Context) (Info, error) {
	r, err := c.system.Info(ctx, &guestv1.InfoRequest{})
	if err != nil {
		return Info{}, fail(ctx, "info", false, err)
	}
	return Info{
		AgentVersion: line(r.AgentVersion), ProtocolVersion: r.ProtocolVersion, BootID: line(r.BootId),
		MachineID: line(r.MachineId), Hostname: line(r.Hostname), Kernel: line(r.Kernel), OS: line(r.Os), Arch: line(r.Arch),
		CPUs: r.Cpus, MemoryBytes: r.MemoryBytes, MemoryAvailable: r.MemoryAvailableBytes,
		RootSize: r.RootSizeBytes, RootFree: r.RootFreeBytes,
		Uptime: time.Duration(r.UptimeNs), Time: time.Unix(0, r.TimeUnixNs), RootDeviceLarger: r.RootDeviceLarger,
		RootDeviceBytes: r.RootDeviceBytes,
	}, nil
}

// line bounds a short text of the guest's and keeps it on one line.
func line(s string) string {
	const most = 256
	if len(s) > most {
		s = s[:most]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// Identity is what makes a guest differ from its siblings. Empty fields are
// left as they are.
type Identity struct {
	Hostname  string
	MachineID string // 32 hex digits
	Time      time.Time
	Entropy   []byte // credited to the kernel's pool; 32 to 512 bytes
}

// SetIdentity sets clock, host name, machine id and entropy. It is idempotent.
func (c *Client) SetIdentity(ctx context.Context, id Identity) error {
	req := &guestv1.SetIdentityRequest{Hostname: id.Hostname, MachineId: id.MachineID, Entropy: id.Entropy}
	if !id.Time.IsZero() {
		req.TimeUnixNs = id.Time.UnixNano()
	}
	_, err := c.system.SetIdentity(ctx, req)
	return fail(ctx, "set identity", true, err)
}

// SetDeadline has the guest power itself off after a time on its own boot
// clock, unless another call comes. Zero or less disarms it.
func (c *Client) SetDeadline(ctx context.Context, remaining time.Duration) error {
	_, err := c.system.SetDeadline(ctx, &guestv1.SetDeadlineRequest{RemainingNs: max(int64(remaining), 0)})
	return fail(ctx, "set deadline", true, err)
}

// GrowRoot grows the root file system to its block device and returns its size
// in bytes. It is idempotent.
func (c *Client) GrowRoot(ctx context.Context) (uint64, error) {
	r, err := c.system.GrowRoot(ctx, &guestv1.GrowRootRequest{})
	if err != nil {
		return 0, fail(ctx, "grow root", true, err)
	}
	return r.RootSizeBytes, nil
}

// PowerOff powers the guest off. That the answer got lost with the link is
// success: the guest may be off already.
func (c *Client) PowerOff(ctx context.Context) error { return c.power(ctx, false) }

// Reboot restarts the guest.
func (c *Client) Reboot(ctx context.Context) error { return c.power(ctx, true) }

func (c *Client) power(ctx context.Context, reboot bool) error {
	_, err := c.system.PowerOff(ctx, &guestv1.PowerOffRequest{Reboot: reboot})
	err = fail(ctx, "power off", true, err)
	if errors.Is(err, ErrOutcomeUnknown) {
		return nil
	}
	return err
}

// retryWait is how long to wait between attempts while the link is down.
const (
	minRetry = 50 * time.Millisecond
	maxRetry = time.Second
)

// pause waits between attempts; it returns ctx's cause when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Finite is a round-tripper that knows when it can never reach its agent
// again. A Client over one stops repeating calls then; over any other it goes
// on until the call's context ends.
type Finite interface {
	// Over is asked after a call failed with ErrUnavailable.
	Over() bool
}

// over says whether retrying is pointless.
func (c *Client) over() bool {
	f, ok := c.rt.(Finite)
	return ok && f.Over()
}
