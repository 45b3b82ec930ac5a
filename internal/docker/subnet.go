package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
)

// Network is a Docker network.
type Network struct {
	ID     string
	Name   string
	Driver string
	// Subnet is the first IPv4 one, the zero Prefix if there is none.
	Subnet netip.Prefix
	Labels map[string]string
}

// KeepLabel marks what a clean-up leaves alone.
const KeepLabel = "sandboxforge.keep"

// addressed marks a network whose subnet EnsureNetwork chose, in which Fixed
// gives addresses.
const addressed = "sandboxforge.addressed"

// subnets are tried in this order for a new network: none of them is the
// guest's own network or one that Docker chooses by itself, and more than one
// because a guest may have more than one network.
var subnets = func() (list []netip.Prefix) {
	for i := range 8 {
		list = append(list, netip.MustParsePrefix(fmt.Sprintf("10.87.%d.0/24", i)))
	}
	return list
}()

// Fixed is the n-th address (from 0) that the engine gives nobody by itself,
// "" in a network that has none.
func (n Network) Fixed(i int) string {
	if n.Labels[addressed] == "" || !n.Subnet.IsValid() || n.Subnet.Bits() != 24 || i < 0 || i > 99 {
		return ""
	}
	a := n.Subnet.Addr().As4()
	a[3] = byte(10 + i)
	return netip.AddrFrom4(a).String()
}

// Network describes a network by name or id. A missing one is ErrNotFound.
func (e *Engine) Network(ctx context.Context, name string) (Network, error) {
	var r struct {
		ID     string `json:"Id"`
		Name   string
		Driver string
		Labels map[string]string
		IPAM   struct {
			Config []struct{ Subnet string }
		}
	}
	if err := e.do(ctx, http.MethodGet, "/networks/"+url.PathEscape(name), nil, &r); err != nil {
		return Network{}, err
	}
	n := Network{ID: r.ID, Name: r.Name, Driver: r.Driver, Labels: r.Labels}
	for _, c := range r.IPAM.Config {
		if p, err := netip.ParsePrefix(c.Subnet); err == nil && p.Addr().Is4() {
			n.Subnet = p.Masked()
			break
		}
	}
	return n, nil
}

// HasNetwork reports whether there is a network of that name.
func (e *Engine) HasNetwork(ctx context.Context, name string) (bool, error) {
	_, err := e.Network(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// EnsureNetwork makes a bridge network unless there is one of that name. A new
// one has room for fixed addresses (Network.Fixed), so that what is restarted is
// found where it was, and is left alone by a clean-up.
func (e *Engine) EnsureNetwork(ctx context.Context, name string) (created bool, err error) {
	_, err = e.Network(ctx, name)
	if err == nil || !errors.Is(err, ErrNotFound) {
		return false, err
	}
	for _, subnet := range subnets {
		a := subnet.Addr().As4()
		gateway, free := a, a
		gateway[3], free[3] = 1, 128
		err = e.do(ctx, http.MethodPost, "/networks/create", map[string]any{
			"Name": name, "Driver": "bridge", "Labels": map[string]string{KeepLabel: "1", addressed: "1"},
			"IPAM": map[string]any{"Config": []any{map[string]any{
				"Subnet": subnet.String(), "Gateway": netip.AddrFrom4(gateway).String(),
				"IPRange": netip.PrefixFrom(netip.AddrFrom4(free), 25).String(),
			}}},
		}, nil)
		if err == nil {
			return true, nil
		}
		// Somebody else may have made it meanwhile.
		if _, gerr := e.Network(ctx, name); gerr == nil {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, err
		}
	}
	return false, err
}

// ConnectNetwork puts a container on one more network; one that is there
// already is success.
func (e *Engine) ConnectNetwork(ctx context.Context, network, container, address string) error {
	in := map[string]any{"Container": container}
	if address != "" {
		in["EndpointConfig"] = map[string]any{"IPAMConfig": map[string]any{"IPv4Address": address}}
	}
	err := e.do(ctx, http.MethodPost, "/networks/"+url.PathEscape(network)+"/connect", in, nil)
	if err != nil {
		if c, cerr := e.Container(ctx, container); cerr == nil {
			if slices.Contains(c.Networks, network) {
				return nil
			}
		}
	}
	return err
}

// DisconnectNetwork takes a container off a network; one that is not on it is
// success.
func (e *Engine) DisconnectNetwork(ctx context.Context, network, container string) error {
	c, err := e.Container(ctx, container)
	if err != nil {
		return err
	}
	if !slices.Contains(c.Networks, network) {
		return nil
	}
	return e.do(ctx, http.MethodPost, "/networks/"+url.PathEscape(network)+"/disconnect", map[string]any{"Container": container, "Force": true}, nil)
}
