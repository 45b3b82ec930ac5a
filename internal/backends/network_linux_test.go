package backends

import (
	"os"
	"strings"
	"testing"

	"sandboxforge/internal/backend/qemu"
	"sandboxforge/internal/image"
	"sandboxforge/internal/network"
)

// TestOneAddressPlan: the images' fixed addresses, the card of the VMs and the
// network of the supervisor are one plan, written down in three packages that
// must not know each other.
func TestOneAddressPlan(t *testing.T) {
	if qemu.MACAddress != network.GuestMAC || qemu.NetworkMTU != network.DefaultMTU {
		t.Errorf("the card is %s with an MTU of %d, the network expects %s and %d", qemu.MACAddress, qemu.NetworkMTU, network.GuestMAC, network.DefaultMTU)
	}
	want := network.GuestAddress.String() + "/" + "24"
	if network.Prefix.Bits() != 24 || image.GuestAddress != want || image.GuestGateway != network.GatewayAddress.String() {
		t.Errorf("images have %s behind %s, the network expects %s behind %s", image.GuestAddress, image.GuestGateway, want, network.GatewayAddress)
	}
	conf, err := os.ReadFile("../image/files/common/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(conf), "nameserver "+network.GatewayAddress.String()+"\n") {
		t.Errorf("images ask %q", conf)
	}
}
