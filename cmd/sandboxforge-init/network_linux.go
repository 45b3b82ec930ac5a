package main

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rtentry is the kernel's struct rtentry on 64-bit machines, which
// golang.org/x/sys does not define.
type rtentry struct {
	_       uint64
	dst     unix.RawSockaddrInet4
	gateway unix.RawSockaddrInet4
	genmask unix.RawSockaddrInet4
	flags   uint16
	_       int16
	_       uint32
	_       uint64
	_       uint8
	_       uint8
	_       [6]byte
	metric  int16
	_       [6]byte
	dev     *byte
	mtu     uint64
	window  uint64
	irtt    uint16
	_       [6]byte
}

// up brings an interface up, with an address if there is one. Plain ioctls:
// four system calls instead of a netlink conversation.
func up(n network) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(n.device)
	if err != nil {
		return err
	}
	if n.address.IsValid() {
		addr := n.address.Addr().As4()
		if err := ifr.SetInet4Addr(addr[:]); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifr); err != nil {
			return fmt.Errorf("set address of %s: %w", n.device, err)
		}
		if err := ifr.SetInet4Addr(net.CIDRMask(n.address.Bits(), 32)); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFNETMASK, ifr); err != nil {
			return fmt.Errorf("set netmask of %s: %w", n.device, err)
		}
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("bring %s up: %w", n.device, err)
	}
	if !n.gateway.IsValid() {
		return nil
	}
	rt := rtentry{flags: unix.RTF_UP | unix.RTF_GATEWAY}
	rt.dst.Family, rt.gateway.Family, rt.genmask.Family = unix.AF_INET, unix.AF_INET, unix.AF_INET
	rt.gateway.Addr = n.gateway.As4()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&rt))); errno != 0 {
		return fmt.Errorf("add default route: %w", errno)
	}
	return nil
}
