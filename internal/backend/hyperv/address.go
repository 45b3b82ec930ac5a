package hyperv

import (
	"context"
	"net/netip"
	"slices"

	"sandboxforge/internal/backend/hyperv/powershell"
)

// addresses is what a script says of where a guest may be.
type addresses struct {
	State     string                  `json:"state"`
	Service   powershell.List[string] `json:"service"` // from the guest's integration service
	Neighbors powershell.List[struct {
		Address string `json:"address"`
		State   string `json:"state"`
	}] `json:"neighbors"`
	NeighborError string `json:"neighborError"`
}

// maxCandidates bounds the addresses that are tried: the guest says what it likes.
const maxCandidates = 8

// candidates are the addresses worth a try, the likeliest first. Only the host
// key tells whether it is the guest that answers there.
func (a addresses) candidates() []netip.Addr {
	var out []netip.Addr
	add := func(text string) {
		ip, err := netip.ParseAddr(text)
		if err != nil || !ip.Is4() || ip.IsLinkLocalUnicast() || ip.IsLoopback() || ip.IsMulticast() || ip.IsUnspecified() {
			return
		}
		if len(out) < maxCandidates && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	for _, s := range a.Service {
		add(s)
	}
	// The newest knowledge first; what the table calls unreachable is no help.
	for _, state := range []string{"Permanent", "Reachable", "Delay", "Probe", "Stale"} {
		for _, n := range a.Neighbors {
			if n.State == state {
				add(n.Address)
			}
		}
	}
	return out
}

// addresses asks where the guest of a machine may be.
func (b *Backend) addresses(ctx context.Context, r record) (a addresses, err error) {
	err = b.call(ctx, "address", b.queryLimit, map[string]any{"id": r.ID, "mac": dashes(r.MAC)}, &a)
	return a, err
}
